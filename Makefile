# `make demo` and `make test` do all set-up themselves and are quick the second time.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test lint bench docs clean
demo: $(VENV)/.fpmc-run
	$(BIN)/fpmc demo --outdir runs/demo

test: lint
	$(BIN)/python -m pytest

lint: $(VENV)/.fpmc-dev
	$(BIN)/ruff check
	$(BIN)/lint-imports
	$(BIN)/basedpyright --level error

bench: $(VENV)/.fpmc-run
	$(BIN)/fpmc bench --outdir runs/bench

docs: $(VENV)/.fpmc-docs
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

# torch goes first and alone, so that no other requirement can choose a build of it.
$(VENV)/.fpmc-run: pyproject.toml constraints.txt | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch -c constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e . -c constraints.txt
	touch $@

$(VENV)/.fpmc-dev: $(VENV)/.fpmc-run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]" -c constraints.txt
	touch $@

$(VENV)/.fpmc-docs: $(VENV)/.fpmc-run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[docs]" -c constraints.txt
	touch $@

clean:
	rm -rf $(VENV) runs examples/runs docs/_build docs/gallery docs/figures/made
