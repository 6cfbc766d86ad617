"""The README runs as printed."""

from __future__ import annotations

import re
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_python_blocks_run(capsys) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    printed = capsys.readouterr().out
    assert "φ_α^{y;1}(ν,β)" in printed
    assert "certified" in printed and "NOT CERTIFIED" not in printed


def test_length_and_commands() -> None:
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    makefile = (README.parent / "Makefile").read_text()
    for target in re.findall(r"^    make (\S+)", text, re.MULTILINE):
        assert f"\n{target}:" in makefile


def test_commands_exist(capsys) -> None:
    from theory.cli import main

    named = set(re.findall(r"^    staircase (\S+)", README.read_text(), re.MULTILINE))
    assert main(["--help"]) == 0
    helped = capsys.readouterr().out
    for command in named:
        assert re.search(rf"^\s+{command}\b", helped, re.MULTILINE), command
