# `make demo` and `make test` work on a fresh machine that has python3, pip and make, and nothing else.
# Settings: PYTHON (interpreter to build the environment from), VENV (where), JOBS (test processes),
# TARGET (what the demo profiles).
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
RUN := runs/demo
TARGET ?= sample:transformer_block

BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help install demo test check lint format schemas docs browser clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

install: $(READY) ## create the environment

# Debian's python3 has no ensurepip without python3-venv: then virtualenv, from a folder of its own, makes the
# environment. `--target` leaves the system's packages alone.
$(BIN)/python:
	$(PYTHON) -m venv $(VENV) || { \
	  rm -rf $(VENV) && \
	  $(PYTHON) -m pip install --quiet --target $(VENV)/bootstrap virtualenv && \
	  PYTHONPATH=$(VENV)/bootstrap $(PYTHON) -m virtualenv --quiet $(VENV); }

$(READY): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[gpu,dev]"
	@touch $@

demo: $(READY) ## profile the bundled transformer block, then prove and apply what pays
	rm -rf $(RUN)
	$(BIN)/fusion-advisor profile $(TARGET) --out $(RUN)
	$(BIN)/fusion-advisor apply $(RUN)
	@printf '\nTo open the dashboard:  %s/fusion-advisor serve %s --allow-apply\n' '$(BIN)' runs

test: $(READY) browser check ## what CI runs: create what is missing, then every check and test

# The page tests drive Debian's Chromium; without it they are skipped and say so.
browser:
	@command -v chromium >/dev/null || test "$$(id -u)" != 0 || ! command -v apt-get >/dev/null || \
	  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -qq -y --no-install-recommends chromium >/dev/null; } || \
	  echo 'chromium could not be installed: browser tests will be skipped'

check: lint ## the same without the browser: lint, formatting, types, import contracts, tests
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(READY) ## the checks that run no test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(READY) ## rewrite the sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

schemas: $(READY) ## write the JSON Schema files from the record types
	$(BIN)/python -m advisor.model.schemas

docs: $(READY) ## write the reference of the rules
	@mkdir -p docs
	$(BIN)/fusion-advisor rules --format markdown > docs/rules.md

clean: ## remove the environment and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist *.egg-info
