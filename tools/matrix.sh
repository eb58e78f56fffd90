#!/usr/bin/env bash
# Runs the demo and the fast tests in an environment for each version of Python and choice of requirements: the newest
# that the package index has (highest), or the lowest that pyproject.toml names (lowest-direct).
#
#   tools/matrix.sh                                      all of them
#   tools/matrix.sh 3.13/highest                         one
#   tools/matrix.sh 3.13/highest -- tests/losses -k max  its tests alone, chosen by arguments of pytest
set -euo pipefail
cd "$(dirname "$0")/.."

interpreter() {  # of a version of Python, on PATH or in pyenv
  if "python$1" -c '' 2> /dev/null; then command -v "python$1"; else echo "$(pyenv root)/versions/$(pyenv latest "$1")/bin/python"; fi
}

places=()
while (($#)) && [[ $1 != -- ]]; do places+=("$1"); shift; done
if ((!${#places[@]})); then places=(3.11/highest 3.12/highest 3.13/highest 3.11/lowest-direct); fi
for place in "${places[@]}"; do
  bin=runs/matrix/$place/bin
  "$(interpreter "${place%/*}")" -m venv --clear "runs/matrix/$place"
  "$bin/python" -m pip install --quiet --disable-pip-version-check uv
  "$bin/python" -m uv pip install --quiet --python "$bin/python" --resolution "${place#*/}" --editable '.[dev]'
  echo "$place: $("$bin/python" -c 'import flax, jax, numpy; print("jax", jax.__version__, "flax", flax.__version__, "numpy", numpy.__version__)')"
  if (($#)); then
    "$bin/python" -m pytest -n 2 -m 'not slow' "${@:2}"
  else
    "$bin/jitm" train --config demo --workdir "runs/matrix/$place/demo"
    "$bin/python" -m pytest -n 2 -m 'not slow'
  fi
done
