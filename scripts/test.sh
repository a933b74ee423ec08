#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install what tests need (nothing, when run again), then format, lint, type checks and tests.
#   scripts/test.sh [--long] [--venv DIR] [arguments of pytest]
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh

venv=.venv
marks=(-m "not long")
rest=()
while [ $# -gt 0 ]; do
    case $1 in
        --long) marks=() ;;
        --venv) venv=${2:?--venv needs a folder}; shift ;;
        -h | --help) sed -n '3,4s/^# *//p' "$0"; exit ;;
        *) rest+=("$1") ;;
    esac
    shift
done

make_venv "$venv" test
PYTHON="$(cd "$venv" && pwd)/bin/python"
export PYTHON
scripts/lint.sh
"$PYTHON" -m pytest "${marks[@]}" "${rest[@]}"
