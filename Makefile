# `make demo` and `make test` need python3 (3.11 to 3.13), make and the package index; they make .venv themselves.
# Another Python: make demo PYTHON=python3.11. Some of the tests: make test TESTS=tests/losses.

BIN := .venv/bin
PYTHON ?= $(or $(wildcard $(BIN)/python),python3)
SHELL := bash
.SHELLFLAGS := -o pipefail -c

version = $(shell $(1) -c 'import platform; print(platform.python_version())' 2> /dev/null)
VERSION := $(call version,$(PYTHON))

# pip, with one word for each package instead of several lines.
PIP := $(BIN)/python -m pip install --disable-pip-version-check
SHORT := awk '/^Collecting/ {sub(/[^A-Za-z0-9_.-].*/, "", $$2); printf "%s ", $$2; fflush()} \
	/^Installing collected/ {print "\nInstalling the packages ..."; fflush()}'

.PHONY: environment demo docs test test-all lint clean

.venv/runtime: pyproject.toml $(if $(filter-out $(VERSION),$(or $(call version,$(BIN)/python),none)),environment)
	@echo "Downloading jitm's requirements (about 250 MB, a minute or two):"
	@$(PIP) -e . | $(SHORT)
	@touch $@

.venv/dev: .venv/runtime
	@echo "Downloading the requirements of the tests:"
	@$(PIP) -e '.[dev]' | $(SHORT)
	@touch $@

# Makes .venv, in place of one with another Python.
environment:
ifeq ($(filter 3.11.% 3.12.% 3.13.%,$(VERSION)),)
	@echo "jitm needs Python 3.11 to 3.13, and $(PYTHON) is $(or $(VERSION),not there): \
	make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 2
endif
	@echo "Creating .venv"
	@$(PYTHON) -m venv --clear .venv || { rm -rf .venv; exit 2; }

# Trains a minute or two on the synthetic scenes and prints the table of recalls.
demo: .venv/runtime
	$(BIN)/jitm train --config demo --workdir runs/demo

# The fast tests that need no other packages, about 6 minutes on two cores.
test: .venv/dev
	$(BIN)/python -m pytest -n 2 -m 'not slow and not needs' $(TESTS)

# All tests; those that need what is not installed are skipped.
test-all: .venv/dev
	$(BIN)/python -m pytest -n 2 $(TESTS)

# The documentation as a site in runs/site; a warning, such as of a dead link, is an error.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf .venv runs/demo
