"""The architectures of examples/architectures: short, derived, tabulated, certified, and their README current."""

import importlib.util
import shlex
from pathlib import Path

import pytest

import theory.cli
from compare.certificate import certify
from theory.evolution import derive

FOLDER = Path(__file__).parents[2] / "examples" / "architectures"


def regenerate():
    spec = importlib.util.spec_from_file_location("regenerate", FOLDER / "regenerate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


REGENERATE = regenerate()
NAMES = REGENERATE.NAMES


def test_every_file_is_listed():
    assert sorted(NAMES) == sorted(p.stem for p in FOLDER.glob("*.py") if p.stem != "regenerate")
    assert len(NAMES) == 5


@pytest.mark.parametrize("name", NAMES)
def test_each_is_short_and_named_after_its_file(name):
    assert len((FOLDER / f"{name}.py").read_text().splitlines()) <= 25
    assert REGENERATE.architecture(name).name == name


@pytest.mark.parametrize("name", NAMES)
def test_the_command_in_its_header_works(name, capfd, monkeypatch):
    monkeypatch.chdir(FOLDER.parents[1])
    program, *words = shlex.split(REGENERATE._parts(name)[1])
    assert program == "staircase" and words[0] == "table"
    assert theory.cli.main(words) == 0
    out, err = capfd.readouterr()
    assert err == "" and out.startswith(f"staircase of dE/dt, {name}, loss degree {REGENERATE.degree(name)}")


@pytest.mark.parametrize("name", NAMES)
def test_descriptions_and_tables_in_the_readme_are_current(name):
    """All but the certificates, which take longer: see below."""
    readme = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert readme.count(f"\n{REGENERATE.description(name)}\nCertificate: ") == 1


@pytest.mark.parametrize("name", ["bilinear_pooling", "relative_attention"])
def test_two_certify_at_once(name):
    certificate = certify(REGENERATE.architecture(name), degree=REGENERATE.degree(name))
    assert certificate.passed, certificate.to_text()
    assert {check.kind for check in certificate.checks} == {"exact", "taylor", "slope"}


@pytest.mark.slow
def test_the_readme_is_current():
    """Every architecture certified, all of them written anew."""
    assert (FOLDER / "README.md").read_text(encoding="utf-8") == REGENERATE.readme()


def test_a_failed_certificate_is_not_written():
    """Equations of too low a degree for the terms that they claim to have."""
    architecture = REGENERATE.architecture("bilinear_pooling")
    kept = derive(architecture).label_driven
    certificate = certify(architecture, degree=6, equations={"kept": kept})
    assert not certificate.passed
    with pytest.raises(AssertionError, match="NOT CERTIFIED"):
        REGENERATE.summary(certificate)
