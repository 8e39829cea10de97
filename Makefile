# Every target does its own set-up: a machine with Python 3.11 and make is enough. Re-running is quick.
#
#   PYTHON=...       which interpreter creates .venv (default: the first of python3.11, python3, … that is new enough)
#   PYTEST_ARGS=...  passed on to pytest in place of two processes at once, e.g. make test PYTEST_ARGS="tests/unit -x"

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
PYTHON ?=
PYTEST_ARGS ?= --numprocesses 2 --dist worksteal
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: help demo test test-all lint format bench docs clean distclean

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(VENV)/.installed-demo  ## train with 4 real workers behind emulated links; prints tables, writes a report page
	$(BIN)/thinwire demo

test: $(VENV)/.installed-dev  ## the tests: seven to nine minutes on two cores
	$(BIN)/python -m pytest $(PYTEST_ARGS)

test-all: $(VENV)/.installed-dev  ## the same, and every test's full product of circumstances
	$(BIN)/python -m pytest --exhaustive $(PYTEST_ARGS)

lint: $(VENV)/.installed-dev  ## ruff, mypy and the import contracts; changes nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(VENV)/.installed-dev  ## let ruff fix and format what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

BENCHMARKS := kernels ops wire step bytes memory moments simulate crowd lockfree

bench: $(VENV)/.installed-bench  ## every benchmark, one after the other; make bench BENCHMARKS="ops step" runs some
	@for name in $(BENCHMARKS); do echo "== thinwire bench $$name"; $(BIN)/thinwire bench $$name; done

docs: $(VENV)/.installed-docs  ## build the documentation into site/
	NO_MKDOCS_2_WARNING=true $(BIN)/mkdocs build --strict --quiet
	@echo "Built: site/index.html"

clean:  ## remove what was built and cached; keeps .venv
	rm -rf build dist site .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -path ./$(VENV) -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean  ## the same, and .venv too
	rm -rf $(VENV)

# ---------------------------------------------------------------------------------------------------------------- set-up
# One stamp for each set of extras; it is renewed when the requirements change. `dev` contains what `demo` needs.

$(BIN)/python:
	@for candidate in $(or $(PYTHON),python3.11 python3 python3.12 python3.13); do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    echo "Creating $(VENV) with $$("$$candidate" --version)"; \
	    "$$candidate" -m venv $(VENV) && exit 0; \
	    rm -rf $(VENV); echo "error: '$$candidate -m venv' failed (on Debian and Ubuntu: install python3-venv)" >&2; exit 1; \
	  fi; \
	done; \
	echo "error: thinwire needs Python 3.11 or newer; tried: $(or $(PYTHON),python3.11 python3 python3.12 python3.13)." >&2; \
	echo "       'python3 --version' says: $$(python3 --version 2>&1 || true)" >&2; \
	echo "       Install Python 3.11, or name an interpreter: make PYTHON=/path/to/python3.11" >&2; \
	exit 1

$(VENV)/.installed-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing thinwire with what the demo needs (a few minutes the first time)"
	$(PIP_INSTALL) -e '.[tasks,report,fast]'
	@touch $@

$(VENV)/.installed-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "Installing thinwire with the tools for tests and lint (a few minutes the first time)"
	$(PIP_INSTALL) -e '.[dev]'
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-bench: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[tasks,report,fast,bench]'
	@touch $@ $(VENV)/.installed-demo

$(VENV)/.installed-docs: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP_INSTALL) -e '.[docs]'
	@touch $@
