#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prove this checkout on a GPU: kernels, memory and handoffs natively, then answers of a pair of workers beside those of a
# CPU and beside its own, then figures, which are appended to docs/measurements.md.
#   scripts/gpu_proof.sh [--venv DIR] [--device cuda:0] [--model NAME|PATH]
# With --device cpu it goes through the same steps on cores, where a GPU's figures are left out.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh

venv=.venv
device=cuda:0
model=smollm2-135m-instruct
while [ $# -gt 0 ]; do
    case $1 in
        --venv) venv=${2:?--venv needs a folder}; shift ;;
        --device) device=${2:?--device needs a device}; shift ;;
        --model) model=${2:?--model needs a name or a path}; shift ;;
        -h | --help) sed -n '3,6s/^# *//p' "$0"; exit ;;
        *) fail "There is no option $1: try --help." ;;
    esac
    shift
done

make_venv "$venv" test
python=$venv/bin/python
if [ "${device%%:*}" != cpu ]; then
    "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        fail "torch in $venv finds no GPU: install a build of torch for your GPU there (pip install --force-reinstall torch)."
fi

servers=()
stop() {
    local pid
    for pid in "${servers[@]}"; do kill -TERM "$pid" 2>/dev/null || true; done
    for pid in "${servers[@]}"; do wait "$pid" 2>/dev/null || true; done
    servers=()
}
trap stop EXIT

free_port() {
    "$python" -c 'import socket; s = socket.create_server(("127.0.0.1", 0)); print(s.getsockname()[1])'
}

# Start a server and wait until it answers; sets `url`.
serve() {
    url=http://127.0.0.1:$(free_port)
    "$python" app.py launch --model "$model" --port "${url##*:}" "$@" &
    servers+=($!)
    "$python" scripts/ask.py "$url" "$!" "What is the capital of Japan?"
}

echo "1. Kernels, memory and handoffs"
"$python" -m pytest -m "not long" tests/gpu_ops/triton tests/runtime/cache tests/runtime/transfer \
    tests/runtime/disaggregation tests/runtime/worker/test_device_memory.py
echo "2. Answers, beside a CPU's and beside its own"
serve --role mixed --mixed cpu --share-devices
cpu=$url
serve --prefill "$device" --decode "$device" --share-devices --deterministic --kv-cache-memory 1GiB
"$python" scripts/gpu_answers.py "$url" "$cpu"
stop
echo "3. Figures"
if [ "${device%%:*}" = cpu ]; then
    "$python" scripts/gpu_bench.py --device cpu --shape tiny
else
    "$python" scripts/gpu_bench.py --device "$device" --record
fi
echo "Proved on $device."
