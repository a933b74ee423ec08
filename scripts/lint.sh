#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Format, lint and type checks: all, or with `style` or `types` that part. Uses the python given in $PYTHON (default: the
# one on the path).
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ "${1:-style}" = style ]; then
    "$python" -m ruff format --check .
    "$python" -m ruff check .
fi
if [ "${1:-types}" = types ]; then
    # The package by the name that it is imported by. In one run: each reads what the libraries declare.
    "$python" -m mypy app.py .links/pontil tests scripts/*.py
fi
