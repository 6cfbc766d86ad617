"""`derive`: the evolution equations of all parameters of an architecture, as one immutable object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import TYPE_CHECKING, Literal

from theory.algebra.components import Factor, Symbol
from theory.algebra.polynomials import Graded
from theory.algebra.scalar import Degree, Scalar, whole_or_fraction
from theory.errors import UserError, argument, nearest
from theory.expansion import (
    ConstantDefinition,
    Expansion,
    FunctionDefinition,
    PolynomialDefinition,
    SoftmaxDefinition,
)
from theory.language import Architecture
from theory.limits import MOST_DEGREE
from theory.reverse import LABEL_DRIVEN, PREDICTION_INDUCED, residuals, right_hand_sides

if TYPE_CHECKING:
    import sympy

    from theory.data.dataset import Dataset
    from theory.staircase import Staircase

Prediction = Literal["kept", "of-truncated-logits", "expanded"]
LOSSES = ("cross_entropy", "squared_error")
PREDICTIONS = ("kept", "of-truncated-logits", "expanded")


@dataclass(frozen=True)
class Term:
    """One contraction, averaged over the data.

    **Arguments:** `coefficient`: exact; `components`: the factors, grouped by connection through summed indices (bound
    indices are "#0", "#1", … within each component, free ones are named after the equation's axes); `degree`: its power of
    ε; `part`: "label" or "prediction"; `path`, `branch`: as in `theory.reverse` (empty unless asked for).
    """

    coefficient: Scalar
    components: tuple[tuple[Factor, ...], ...]
    degree: Degree
    part: str
    path: str = ""
    branch: str = ""

    @property
    def factors(self) -> tuple[Factor, ...]:
        """All factors, the bound indices of different components told apart."""
        result: list[Factor] = []
        offset = 0
        for component in self.components:
            seen = set()
            moved = []
            for name, indices in component:
                seen |= {i for i in indices if i.startswith("#")}
                moved.append((name, tuple(f"#{int(i[1:]) + offset}" if i.startswith("#") else i for i in indices)))
            result += moved
            offset += len(seen)
        return tuple(result)


@dataclass(frozen=True)
class Equation:
    """The right-hand side of one parameter's evolution, dθ/dt = Σ terms, with the parameter's axes free."""

    parameter: str
    axes: tuple[str, ...]
    terms: tuple[Term, ...]

    def __iter__(self) -> Iterator[Term]:
        return iter(self.terms)

    def __len__(self) -> int:
        return len(self.terms)

    @property
    def degrees(self) -> tuple[Degree, ...]:
        """The degrees of the right-hand side's terms, rising."""
        return tuple(sorted({term.degree for term in self.terms}))

    def by_degree(self) -> dict[Degree, Equation]:
        """The equation's parts by degree, rising."""
        return {d: self.where(lambda term, d=d: term.degree == d) for d in self.degrees}

    def where(self, condition) -> Equation:
        """The part whose terms fulfil a condition."""
        return replace(self, terms=tuple(term for term in self.terms if condition(term)))

    @property
    def label_driven(self) -> Equation:
        """E[(∂f/∂θ)ᵀ e_y]."""
        return self.where(lambda term: term.part == LABEL_DRIVEN)

    @property
    def prediction_induced(self) -> Equation:
        """−E[(∂f/∂θ)ᵀ p], its sign included."""
        return self.where(lambda term: term.part == PREDICTION_INDUCED)


@dataclass(frozen=True)
class NamedQuantity:
    """A named quantity that is a sum of contractions at one sample, its labels free."""

    symbol: Symbol
    terms: tuple[Term, ...]


Quantity = NamedQuantity | FunctionDefinition | SoftmaxDefinition | ConstantDefinition


@dataclass(frozen=True, eq=False)
class EvolutionEquations(Mapping[str, Equation]):
    """The evolution equations of every parameter: a mapping from parameter names to `Equation`s.

    `quantities` defines, in order, the named quantities that terms use; `symbols` describes every symbol. `degree` is the
    degree of the loss (None: everything kept, exact); the right-hand side of a parameter of weight a reaches degree
    `degree − a`. `distinct`: sums run over distinct positions; `whole`: no term was left out.
    """

    architecture: Architecture
    degree: Degree | None
    keep: tuple[str, ...]
    prediction: str
    loss: str
    paths: bool
    equations: Mapping[str, Equation]
    quantities: tuple[Quantity, ...]
    symbols: Mapping[str, Symbol]
    distinct: bool = field(default=False)
    whole: bool = field(default=True)

    def __getitem__(self, parameter: str) -> Equation:
        if parameter not in self.equations:
            raise UserError(
                f"{self.architecture.name} has no parameter '{parameter}'; {nearest(parameter, self.equations)}"
            )
        return self.equations[parameter]

    def __iter__(self) -> Iterator[str]:
        return iter(self.equations)

    def __len__(self) -> int:
        return len(self.equations)

    def __repr__(self) -> str:
        reach = "exact" if self.degree is None else f"to loss degree {self.degree}"
        return (
            f"EvolutionEquations({self.architecture.name}, {reach}, prediction {self.prediction}, "
            f"{self.term_count} terms)"
        )

    @property
    def term_count(self) -> int:
        """The number of terms of all equations and named quantities."""
        named = sum(len(q.terms) for q in self.quantities if isinstance(q, NamedQuantity))
        return named + sum(len(equation) for equation in self.equations.values())

    @property
    def label_driven(self) -> EvolutionEquations:
        """The label-driven parts of all equations."""
        return self._map(lambda equation: equation.label_driven)

    @property
    def prediction_induced(self) -> EvolutionEquations:
        """The prediction-induced parts of all equations, signs included."""
        return self._map(lambda equation: equation.prediction_induced)

    def of_degree(self, degree: Degree) -> EvolutionEquations:
        """The parts of all equations that come from one degree of the loss."""
        weights = {name: spec.weight for name, spec in self.architecture.parameters.items()}
        return self._map(lambda eq: eq.where(lambda term: term.degree + weights[eq.parameter] == degree))

    @property
    def loss_degrees(self) -> tuple[Degree, ...]:
        """The degrees of the loss that have terms, rising."""
        return tuple(
            sorted(
                {
                    term.degree + self.architecture.parameters[name].weight
                    for name, equation in self.equations.items()
                    for term in equation
                }
            )
        )

    def distinct_positions(self) -> EvolutionEquations:
        """The same equations with sums over *distinct* positions, those of probability signatures (paper, §2).

        At high degree this view has many more terms.
        """
        from theory.positions import distinct_terms

        if self.distinct:
            return self
        return replace(
            self._map(lambda equation: replace(equation, terms=distinct_terms(self, equation.terms))),
            distinct=True,
            whole=self.whole,
        )

    def staircase(self, parameter: str | None = None) -> Staircase:
        """Which signature enters the equation of an embedding, at what degree and with what multiplier."""
        from theory.staircase import staircase

        return staircase(self, parameter)

    def shared(self) -> EvolutionEquations:
        """The same right-hand sides for evaluation: every product is named, degree by degree, and so computed once.

        Nothing is multiplied out and label-driven and prediction-induced parts travel together, so that the cost is that of
        as many passes of reverse-mode differentiation as there are degrees. For arithmetic, not for reading. A part of
        equations (`of_degree`, `label_driven`, …) is returned as it is.
        """
        if not self.whole:
            return self
        return _derive(self.architecture, self.degree, self.keep, self.loss, self.prediction, False, shared=True)

    def to_text(self, parameter: str | None = None) -> str:
        """The equations as plain text."""
        from theory.printing.text import to_text

        return to_text(self, parameter)

    def to_latex(self, parameter: str | None = None) -> str:
        """The equations as a LaTeX document body (amsmath `align*`), with a legend of symbols."""
        from theory.printing.latex import to_latex

        return to_latex(self, parameter)

    def latex_lines(self, parameter: str | None = None) -> list[str]:
        """The equations as separate LaTeX formulas, without environment or alignment marks."""
        from theory.printing.latex import latex_lines

        return latex_lines(self, parameter)

    def to_markdown(self, parameter: str | None = None) -> str:
        """The equations as Markdown with LaTeX formulas."""
        from theory.printing.latex import to_markdown

        return to_markdown(self, parameter)

    def to_json(self, indent: int | None = None) -> str:
        """The equations as JSON (schema "context-staircase/equations", see `theory.printing.json`)."""
        from theory.printing.json import to_json

        return to_json(self, indent)

    @staticmethod
    def from_json(text: str, architecture: Architecture) -> EvolutionEquations:
        """Read back what `to_json` wrote of this architecture (see `theory.printing.json`)."""
        from theory.printing.json import from_json

        return from_json(text, architecture)

    def identical(self, other: EvolutionEquations) -> bool:
        """Whether both have the same settings, symbols, named quantities and terms, in the same order.

        `==` is identity, since two functions that build an array cannot be compared.
        """
        from theory.printing.json import to_dict

        return to_dict(self) == to_dict(other)

    def to_sympy(self, sizes: Mapping[str, int], dataset: Dataset) -> dict[str, sympy.Array]:
        """Every right-hand side entry by entry, exactly, for small sizes (see `theory.printing.sympy`)."""
        from theory.printing.sympy import to_sympy

        return to_sympy(self, sizes, dataset)

    def _repr_latex_(self) -> str:
        return "$$\\begin{aligned}" + " \\\\ ".join(self.latex_lines()) + "\\end{aligned}$$"

    def _map(self, change) -> EvolutionEquations:
        equations = {name: change(equation) for name, equation in self.equations.items()}
        return replace(self, equations=equations, whole=False)


def derive(
    architecture: Architecture,
    degree: Degree | None = None,
    keep: str | tuple[str, ...] | None = None,
    *,
    loss: str = "cross_entropy",
    prediction: Prediction | None = None,
    paths: bool = False,
) -> EvolutionEquations:
    """Derive the evolution equations of every parameter under gradient flow, dθ/dt = −∂L/∂θ.

    **Arguments:**

    - `architecture`: see `theory.language.Architecture`.
    - `degree`: the degree of the *loss* up to which terms are kept, counted in powers of the initial scale. None keeps every
      nonlinearity: the exact gradient, as a graph of named quantities.
    - `keep`: names of the nonlinearities that are not expanded ("activation", "attention", "prediction", "all"), by default
      ("prediction",). Theorem 1 of the paper expands the activation and keeps the prediction; its Theorem 3 keeps attention.
    - `loss`: "cross_entropy" or "squared_error", each a mean over samples (and positions).
    - `prediction`: what p is where it is kept: "kept" (of the untruncated logits; not a gradient field once ∂f is cut) or
      "of-truncated-logits" (the exact loss of the cut logits: a gradient flow). "expanded" where it is not kept.
    - `paths`: keep terms apart by path and branch (see `theory.language.module` and `branch`).

    **Returns:** `EvolutionEquations`.

    **Raises:** `UserError` for an unknown name in `keep`, for a function that is not analytic and is not kept, and for a
    degree that no term of the loss has.

    Source: paper 2608.30315, Theorems 1–3.
    """
    if loss not in LOSSES:
        raise UserError(f"unknown loss '{loss}'; {nearest(loss, LOSSES)}")
    names = _names(keep, degree)
    mode = _mode(prediction, names, degree, loss)
    if degree is not None and (isinstance(degree, bool) or not isinstance(degree, (int, Fraction)) or degree < 1):
        raise UserError(f"the degree of the loss is a whole number of at least 1, found {degree}")
    if degree is not None and degree > MOST_DEGREE and "all" not in names:
        raise UserError(
            f"an expansion to degree {degree} of the loss would not end; take a degree of at most {MOST_DEGREE} (its terms "
            f"multiply with every degree)"
        )
    limit = None if degree is None else whole_or_fraction(degree)
    equations = _derive(architecture, limit, names, loss, mode, paths)
    if limit is not None and limit not in equations.loss_degrees:
        _require_degree(equations)
    return equations


def _derive(
    architecture: Architecture,
    degree: Degree | None,
    keep: tuple[str, ...],
    loss: str,
    mode: str,
    paths: bool,
    shared: bool = False,
) -> EvolutionEquations:
    expansion = Expansion(architecture, degree, frozenset(keep), shared=shared)
    sides, adjoints = right_hand_sides(expansion, residuals(expansion, mode, loss), paths)
    equations = {}
    for name, tagged in sides.items():
        terms = [term for tag, graded in tagged.items() for term in _terms(expansion, graded, *tag)]
        equations[name] = Equation(name, architecture.parameters[name].axes, tuple(sorted(terms, key=_order)))
    quantities = [
        NamedQuantity(d.symbol, tuple(sorted(_terms(expansion, d.value, ""), key=_order)))
        if isinstance(d, PolynomialDefinition)
        else d
        for d in (*expansion.definitions.values(), *adjoints.values())
    ]
    used = _used(equations, quantities)
    return EvolutionEquations(
        architecture,
        degree,
        keep,
        mode,
        loss,
        paths,
        equations,
        tuple(q for q in quantities if q.symbol.name in used),
        {name: symbol for name, symbol in expansion.table.symbols.items() if name in used},
    )


def _terms(expansion: Expansion, graded: Graded, part: str, path: str = "", branch: str = "") -> Iterator[Term]:
    for degree, polynomial in graded.items():
        for (atoms, components), rational in polynomial.items():
            structure = tuple(sorted(expansion.table[c].factors for c in components))
            yield Term(Scalar(rational, atoms), structure, degree, part, path, branch)


def _order(term: Term) -> tuple:
    return (
        term.part,
        term.path,
        term.branch,
        term.degree,
        len(term.components),
        term.components,
        term.coefficient.atoms,
    )


def _used(equations: Mapping[str, Equation], quantities: list) -> set[str]:
    """The symbols that the equations use, directly or through named quantities."""
    names = {f[0] for equation in equations.values() for term in equation for c in term.components for f in c}
    for quantity in reversed(quantities):
        if quantity.symbol.name not in names:
            continue
        match quantity:
            case NamedQuantity(terms=terms):
                names |= {f[0] for term in terms for c in term.components for f in c}
            case FunctionDefinition(argument=argument):
                names.add(argument.name)
            case SoftmaxDefinition(argument=argument, mask=mask):
                names |= {argument.name} | ({mask.name} if mask is not None else set())
    return names


def _names(keep: str | tuple[str, ...] | None, degree: Degree | None) -> tuple[str, ...]:
    if keep is None:
        return ("all", "prediction") if degree is None else ("prediction",)
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    if degree is None and "all" not in names:
        raise UserError(
            f"without a degree everything is kept and {argument('keep')} has no effect; give {argument('degree')} (of the "
            f"loss), or {argument('keep', 'all')}"
        )
    return tuple(dict.fromkeys((*names, "prediction"))) if "all" in names else names


def _mode(prediction: str | None, keep: tuple[str, ...], degree: Degree | None, loss: str) -> str:
    kept = "prediction" in keep
    if prediction is None:
        prediction = "kept" if kept else "expanded"
    if prediction not in PREDICTIONS:
        raise UserError(f"unknown prediction '{prediction}'; {nearest(prediction, PREDICTIONS)}")
    if kept == (prediction == "expanded"):
        have = "kept" if kept else "not kept"
        raise UserError(
            f"{argument('prediction', prediction)} contradicts {argument('keep')}, by which the prediction is {have}"
        )
    return prediction


def _require_degree(equations: EvolutionEquations) -> None:
    """Refuse a degree that no term of the loss has, naming the nearest that terms have."""
    architecture, degree = equations.architecture, equations.degree
    assert degree is not None
    # A kept prediction hides the degrees that its own expansion has; the loss has them all the same.
    keep = tuple(name for name in equations.keep if name != "prediction")

    def degrees(limit: Degree) -> tuple[Degree, ...]:
        return _derive(architecture, limit, keep, equations.loss, "expanded", False).loss_degrees

    present = degrees(degree)
    if degree in present:
        return
    found = [str(d) for d in present][-1:]
    for higher in range(int(degree) + 1, int(degree) + 9):
        if higher in degrees(higher):
            found.append(str(higher))
            break
    name = architecture.name
    if not found:
        raise UserError(f"no term of the loss of {name} has a degree up to {degree + 8}")
    nearest_degrees = (
        f"the nearest degrees are {' and '.join(found)}" if len(found) > 1 else f"the nearest is {found[0]}"
    )
    raise UserError(f"no term of the loss of {name} has degree {degree}; {nearest_degrees}")
