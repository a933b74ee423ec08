#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Install pontil into a virtual environment, launch it with the default model and ask one question.
#   scripts/quickstart.sh [--venv DIR] [--keep] [-- flags of `pontil launch`]
# --keep leaves it serving until Ctrl-C; otherwise everything is stopped after the answer. Running it again is quick.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh

venv=.venv
keep=
while [ $# -gt 0 ]; do
    case $1 in
        --venv) venv=${2:?--venv needs a folder}; shift ;;
        --keep) keep=yes ;;
        -h | --help) sed -n '3,5s/^# *//p' "$0"; exit ;;
        --) shift; break ;;
        *) fail "There is no option $1: try --help." ;;
    esac
    shift
done

# One core or one GPU is too little for a worker of each kind, unless they share it.
sharing() {
    local gpus=0
    if command -v nvidia-smi >/dev/null; then gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU' || true); fi
    case $gpus in
        0) [ "$(nproc)" -gt 1 ] || echo "--share-devices" ;;
        1) echo "--share-devices --kv-cache-memory 2GiB" ;;
    esac
}

free_port() {
    "$venv/bin/python" - <<'PY'
import socket

for port in (8000, 0):
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
            probe.listen()
        except OSError:
            continue
        print(probe.getsockname()[1])
        break
PY
}

launcher=
stop() {
    [ -z "$launcher" ] || kill "$1" "$launcher" 2>/dev/null || true
    [ -z "$launcher" ] || wait "$launcher" || true
    launcher=
}
trap 'stop -INT' EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

make_venv "$venv"
# shellcheck disable=SC2046 # each word is a flag
[ $# -gt 0 ] || set -- $(sharing)
port=$(free_port)
"$venv/bin/pontil" launch --port "$port" "$@" &
launcher=$!

"$venv/bin/python" scripts/ask.py "http://127.0.0.1:$port" "$launcher" "What is the capital of Japan?"
echo "Since the start of this script: $SECONDS s"
if [ -n "$keep" ]; then
    echo "Serving until Ctrl-C."
    wait "$launcher" && launcher= || { status=$?; launcher=; exit "$status"; }
else
    stop -TERM
    echo "Everything is stopped again (--keep leaves it serving)."
fi
