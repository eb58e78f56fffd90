# `make demo` and `make test` need python3 (3.11 to 3.13), make and the package index; they make .venv themselves.

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint clean

.venv/runtime: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/dev: .venv/runtime
	$(BIN)/pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $@

# Trains a minute or two on the synthetic scenes and prints the table of recalls.
demo: .venv/runtime
	$(BIN)/python train.py --config configs/demo.py --workdir runs/demo

test: .venv/dev
	$(BIN)/python -m pytest -n 2

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

clean:
	rm -rf .venv runs/demo
