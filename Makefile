# The environment is .venv; every target makes it on first use and remakes it when pyproject.toml changes.
PYTHON ?= python3.11
TORCH := torch==2.13.0
BIN := .venv/bin

.PHONY: scan test lint bench clean

# Findings (exit status 1) are what a scan is for, no failed build. Whatever else is not 0 is one.
scan: .venv/ready
	$(BIN)/numalign scan --repaired || { status=$$?; test $$status -eq 1 || exit $$status; }

# Two files at a time: what the tests of a file share is made once.
test: lint
	$(BIN)/python -m pytest -q --numprocesses=2 --dist=loadfile --no-loadscope-reorder

lint: .venv/ready
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

bench: .venv/ready
	$(BIN)/python benchmarks/losses.py

# torch first and pinned: a later requirement is then met by it, instead of by a build for a GPU that is not there.
.venv/ready: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[dev]" "$(TORCH)"
	touch $@

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis
