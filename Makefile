# Two commands do everything: `make demo` and `make test`. Needs Python 3.11 or later, pip and make.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slow fuzz lint bench clean

demo: .venv/ready
	$(BIN)/staircase compare examples/demo.toml -o runs/demo --force

test: .venv/ready
	$(BIN)/python -m pytest -n 2 --dist loadfile -m "not slow"

test-slow: .venv/ready
	$(BIN)/python -m pytest -m slow

# 200 random architectures against autodiff and Taylor coefficients; prints what was checked.
fuzz: .venv/ready
	FUZZ_DRAWS=200 $(BIN)/python -m pytest -q -s tests/test_compare/test_fuzz.py

bench: .venv/ready
	for each in tests/benchmarks/*.py; do echo "== $$each"; $(BIN)/python $$each || exit 1; done

lint: .venv/ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright

.venv/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable ".[dev]"
	touch $@

clean:
	rm -rf .venv runs
