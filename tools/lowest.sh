#!/usr/bin/env bash
# Runs the demo and the fast tests with Python 3.11 and the lowest requirements that pyproject.toml names.
#
#   tools/lowest.sh                      all fast tests
#   tools/lowest.sh tests/losses -k max  those that the arguments of pytest choose
set -euo pipefail
cd "$(dirname "$0")/.."
bin=runs/lowest/bin
python3.11 -m venv --clear runs/lowest
"$bin/python" -m pip install --quiet --disable-pip-version-check uv
"$bin/python" -m uv pip install --quiet --python "$bin/python" --resolution lowest-direct --editable '.[dev]'
"$bin/python" -c 'import flax, jax, numpy; print("jax", jax.__version__, "flax", flax.__version__, "numpy", numpy.__version__)'
"$bin/jitm" train --config demo --workdir runs/lowest/demo
"$bin/python" -m pytest -n 2 -m 'not slow and not needs' "$@"
