"""LaTeX formulas as MathML, readable without any network."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from latex2mathml.converter import convert

_MATHML = "http://www.w3.org/1998/Math/MathML"
_ELEMENTS = frozenset(
    "math mrow mi mn mo mtext ms mspace msub msup msubsup mfrac msqrt mroot mover munder munderover "
    "mtable mtr mtd mpadded mphantom mstyle menclose mfenced merror mmultiscripts".split()
)


def mathml(latex: str) -> str:
    """One LaTeX formula as display MathML.

    **Raises:** `ValueError` naming the formula when it cannot be rendered faithfully: unbalanced
    braces, an unknown command, anything that would not be well-formed MathML.
    """
    bare = re.sub(r"\\[\\{}]", "", latex)
    if bare.count("{") != bare.count("}"):
        raise ValueError(f"formula has unbalanced braces: {latex}")
    try:
        converted = convert(latex, display="block")
    except Exception as error:
        raise ValueError(f"formula cannot be rendered ({type(error).__name__}): {latex}") from error
    try:
        root = ElementTree.fromstring(converted)
    except ElementTree.ParseError as error:
        raise ValueError(f"formula does not become MathML ({error}): {latex}") from error
    for element in root.iter():
        namespace, _, tag = element.tag.partition("}")
        if namespace != "{" + _MATHML or tag not in _ELEMENTS:
            raise ValueError(f"formula becomes {element.tag!r}, which is no MathML: {latex}")
        if "\\" in (element.text or ""):
            raise ValueError(f"formula uses the unknown command {element.text}: {latex}")
        element.tag = tag
    return ElementTree.tostring(root, encoding="unicode")
