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
    # A new checkout begins with what was found out in another one of libraries and of files that are alike. It is kept
    # as one file, which is replaced at once: no run reads what another one writes.
    kept=${XDG_CACHE_HOME:-$HOME/.cache}/pontil/mypy.tar
    is_new=$([ -d .mypy_cache ] || echo 1)
    if [ -n "$is_new" ] && [ -f "$kept" ]; then tar -xf "$kept" || rm -rf .mypy_cache; fi
    status=0
    # The package by the name that it is imported by. In one run: each reads what the libraries declare.
    "$python" -m mypy app.py .links/pontil tests scripts/*.py || status=$?
    if [ -n "$is_new" ] && mkdir -p "${kept%/*}" && tar -cf "$kept.$$" .mypy_cache; then mv "$kept.$$" "$kept"; fi
    exit "$status"
fi
