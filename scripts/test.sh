#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install what tests need (nothing, when run again), then format, lint, type checks and tests.
#   scripts/test.sh [--long] [--kernels SET] [--venv DIR] [--costs FILE] [arguments of pytest]
# --long adds what takes minutes; --kernels avx2 tests as on a processor that has no faster instruction set; --costs
# writes the processor time of each test to FILE, and shows the dearest.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh

venv=.venv
marks=(-m "not long")
costs=()
rest=()
while [ $# -gt 0 ]; do
    case $1 in
        --long) marks=(); export LONG_TESTS=1 ;;
        --kernels) export TEST_KERNELS=${2:?--kernels needs a name}; shift ;;
        --costs) costs=("--costs=${2:?--costs needs a file}"); shift ;;
        --venv) venv=${2:?--venv needs a folder}; shift ;;
        -h | --help) sed -n '3,6s/^# *//p' "$0"; exit ;;
        *) rest+=("$1") ;;
    esac
    shift
done

# Hundreds of processes start here: what they import is compiled once, even where the environment forbids it.
unset PYTHONDONTWRITEBYTECODE
make_venv "$venv" test
# Units are verified by systemd's own tool. Without it, their tests are skipped and say so.
if ! command -v systemd-analyze >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing systemd, to verify units with"
    apt-get install -qq -y --no-install-recommends systemd >/dev/null || echo "It could not be installed: see above."
fi
# The live page is tested in a real browser. Without it, its tests are skipped and say so.
if ! command -v chromium >/dev/null && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    echo "Installing Chromium, to test the live page in"
    apt-get install -qq -y --no-install-recommends chromium fonts-dejavu-core >/dev/null ||
        echo "It could not be installed: see above."
fi
# Queries and alert rules are checked by Prometheus itself. Its package is only unpacked: installed, it would start a server.
tools=${XDG_CACHE_HOME:-$HOME/.cache}/pontil/test-tools
export PATH="$PATH:$tools/usr/bin"
if ! command -v promtool >/dev/null && command -v apt-get >/dev/null; then
    echo "Fetching Prometheus, to check the dashboard and the alerts with"
    mkdir -p "$tools"
    (cd "$tools" && apt-get download -qq prometheus && dpkg -x prometheus_*.deb . && rm prometheus_*.deb) ||
        echo "It could not be fetched: see above."
fi
# The kernels are compiled for Arm and emulated in the long tests.
if [ -n "${LONG_TESTS:-}" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null &&
    ! { command -v aarch64-linux-gnu-g++ && command -v qemu-aarch64; } >/dev/null; then
    echo "Installing a compiler for Arm and an emulator, to test the kernels with"
    apt-get install -qq -y --no-install-recommends g++-aarch64-linux-gnu qemu-user >/dev/null ||
        echo "They could not be installed: see above."
fi
PYTHON="$(cd "$venv" && pwd)/bin/python"
export PYTHON
if [ ${#rest[@]} -gt 0 ]; then
    scripts/lint.sh
    exec "$PYTHON" -m pytest "${marks[@]}" "${costs[@]}" "${rest[@]}"
fi
scripts/lint.sh style
status=0
# The check of types has whatever the tests leave of the cores, and says its findings after theirs.
types=$(mktemp)
nice -n 19 scripts/lint.sh types >"$types" 2>&1 &
types_process=$!
trap 'kill "$types_process" 2>/dev/null || true; rm -f "$types"' EXIT
# Tests that start processes wait as much as they compute, so that twice as many at a time as there are cores keep these
# busy; a file stays together, and files that share a system, as tests/conftest.py says.
jobs=$((2 * $(env -u OMP_NUM_THREADS nproc)))
OMP_NUM_THREADS=1 "$PYTHON" -m pytest "${marks[@]}" "${costs[@]}" --jobs "$jobs" || status=$?
wait "$types_process" || status=$?
cat "$types"
trap 'rm -f "$types"' EXIT
exit $status
