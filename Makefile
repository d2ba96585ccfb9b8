# make inspect [MODEL=path]   the report of a checkpoint; without MODEL, of the shipped example
# make test                   everything that is checked before a change is merged
# make bench                  the benchmarks (hours; BENCHMARKS=benchmarks/name.py for one)
# make docs                   regenerate the generated pages and the output shown in the docs
#
# Needs make and Python 3.11 or newer (PYTHON=python3.12 chooses another one). Everything is
# installed into .venv; stamps in it remember what was installed, so nothing is installed twice.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
WORKERS ?= 2

# One thread a process: the matrices are small, and the tests already run side by side.
THREADS := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1 VECLIB_MAXIMUM_THREADS=1
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

BENCHMARKS := $(wildcard benchmarks/*.py)

.DELETE_ON_ERROR:
.PHONY: help inspect install test lint bench docs clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

inspect: $(VENV)/.light
	@$(BIN)/fiberscope inspect $(if $(MODEL),"$(MODEL)",--example)

install: $(VENV)/.test

test: lint
	$(THREADS) $(BIN)/python -m pytest -n $(WORKERS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

bench: $(VENV)/.test
	@set -e; for script in $(BENCHMARKS); do \
	  echo "== $$script"; $(THREADS) $(BIN)/python $$script; \
	done

docs: $(VENV)/.test
	$(BIN)/python scripts/build_atlas.py
	$(BIN)/python scripts/refresh_docs.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/.created:
	@command -v $(PYTHON) >/dev/null || { \
	  echo "fiberscope needs Python 3.11 or newer, and there is no '$(PYTHON)' here;" \
	       "name yours: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "fiberscope needs Python 3.11 or newer, but '$(PYTHON)' is" \
	       "$$($(PYTHON) --version); name another: make PYTHON=/path/to/python" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "'$(PYTHON)' cannot create virtual environments with pip;" \
	       "on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.light: pyproject.toml | $(VENV)/.created
	@echo "Installing fiberscope into $(VENV) (once) ..." >&2
	@$(PIP) install --editable . >&2
	@touch $@

$(VENV)/.test: pyproject.toml constraints-dev.txt | $(VENV)/.created
	@echo "Installing fiberscope and what its tests need into $(VENV) (once) ..." >&2
	@$(PIP) install --constraint constraints-dev.txt --editable '.[test]' >&2
	@touch $(VENV)/.light $@
