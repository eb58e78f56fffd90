# `make demo` and `make test` need python3 (3.11 to 3.13), make and the package index; they make .venv themselves.

PYTHON ?= python3
BIN := .venv/bin
SHELL := bash
.SHELLFLAGS := -o pipefail -c

# pip, with one word for each package instead of several lines.
PIP := $(BIN)/python -m pip install --disable-pip-version-check
SHORT := awk '/^Collecting/ {sub(/[^A-Za-z0-9_.-].*/, "", $$2); printf "%s ", $$2; fflush()} \
	/^Installing collected/ {print "\nInstalling the packages ..."; fflush()}'

.PHONY: demo docs test test-all lint clean

.venv/runtime: pyproject.toml
	@echo "Creating .venv"
	@$(PYTHON) -m venv .venv
	@echo "Downloading jitm's requirements (about 250 MB, a minute or two):"
	@$(PIP) -e . | $(SHORT)
	@touch $@

.venv/dev: .venv/runtime
	@echo "Downloading the requirements of the tests:"
	@$(PIP) -e '.[dev]' | $(SHORT)
	@touch $@

# Trains a minute or two on the synthetic scenes and prints the table of recalls.
demo: .venv/runtime
	$(BIN)/jitm train --config demo --workdir runs/demo

# The fast tests, under 5 minutes on two cores.
test: .venv/dev
	$(BIN)/python -m pytest -n 2 -m 'not slow'

test-all: .venv/dev
	$(BIN)/python -m pytest -n 2

# The documentation as a site in runs/site; a warning, such as of a dead link, is an error.
docs: .venv/dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf .venv runs/demo
