#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prove this checkout on GPUs, step by step, each within 8 minutes: all steps, or those that are named.
#   scripts/gpu_proof.sh [--venv DIR] [--device cuda:0] [--second cuda:1] [--model NAME|PATH] [STEP]...
#   kernels   every kernel beside torch, and memory, transfers and handoffs, on the device
#   second    the kernels once more on the second device
#   pair      a prefill and a decode worker, on both devices where there are two, with handoffs over IPC: long prompts,
#             workers that are killed, answers beside a CPU's
#   alike     the same pair with --deterministic: answers alone and in company
#   replay    a pair with little KV memory, whose sequences are preempted: answers alone and in company
#   adapters  a pair with adapters of several ranks: each beside a CPU's answers, alone and in company
#   hybrid    a pair with a small model of recurrent layers and random weights: beside a CPU's answers, and in company
#   ranks     workers of two ranks, one on each device, beside a CPU's answers
#   fast      the same with the fast arithmetic of ranks, where this version has it
#   attention FlashAttention-3 and FlashInfer, if they are installed: beside our kernels, a CPU's answers, and figures
#   parts     kernels of torch and FlashInfer for products, experts and draws: beside ours, and a CPU's answers
#   figures   steps, prompts and pulls beside what the device can do and beside vLLM, if it is installed, appended to
#             docs/measurements.md
#   sanitizer the kernels under compute-sanitizer
# Goes on after a step that failed, names those that the machine cannot do, and ends with 1 if any failed. With
# --device cpu the steps of workers run on cores, and figures are not recorded.
set -euo pipefail
cd "$(dirname "$0")/.."
. scripts/venv.sh

steps=(kernels second pair alike replay adapters hybrid ranks fast attention parts figures sanitizer)
limit=480
venv=.venv
device=cuda:0
second=cuda:1
model=smollm2-135m-instruct
# Its heads can be divided by two; those of the model above cannot.
divided=gemma3-270m
given=
chosen=()
alone=
while [ $# -gt 0 ]; do
    case $1 in
        --venv) venv=${2:?--venv needs a folder}; shift ;;
        --device) device=${2:?--device needs a device}; shift ;;
        --second) second=${2:?--second needs a device}; shift ;;
        --model) model=${2:?--model needs a name or a path}; divided=$model; given=$model; shift ;;
        --alone) alone=yes ;;
        -h | --help) sed -n '3,22s/^# *//p' "$0"; exit ;;
        -*) fail "There is no option $1: try --help." ;;
        *) [[ " ${steps[*]} " == *" $1 "* ]] || fail "There is no step $1: choose from ${steps[*]}."
            chosen+=("$1") ;;
    esac
    shift
done
[ ${#chosen[@]} -gt 0 ] || chosen=("${steps[@]}")
python=$venv/bin/python

# Why this machine cannot do a step; nothing if it can.
lacks() {
    case $1 in
        second | ranks | fast)
            [ "$device" = cpu ] && { [ "$1" != second ] || echo "cores have no kernels of Triton"; return; }
            "$python" -c 'import sys, torch; sys.exit(torch.cuda.device_count() < 2)' || echo "there is one GPU" ;;
        attention) [ "$device" != cpu ] || { echo "the packages compute on GPUs only"; return; }
            [ -n "$("$python" scripts/gpu_attention.py --installed)" ] ||
                echo "neither flash_attn_interface nor flashinfer is installed" ;;
        parts) [ "$device" != cpu ] || { echo "these kernels compute on GPUs only"; return; }
            [ -n "$("$python" scripts/gpu_parts.py --device "$device" --usable)" ] ||
                echo "torch has none for this GPU, and flashinfer is not installed" ;;
        kernels) [ "$device" != cpu ] || echo "cores have no kernels of Triton: the suite interprets them" ;;
        sanitizer) [ "$device" != cpu ] || { echo "there is nothing to watch on cores"; return; }
            command -v compute-sanitizer > /dev/null || echo "compute-sanitizer is not installed" ;;
    esac
}

# What a step leaves out here, of what it proves elsewhere; nothing if it is all there.
lacks_in_part() {
    case $1 in
        pair | figures) [ "$device" = cpu ] || lacks second ;;
    esac
}

# The device beside the first one, where there is one.
other_device() {
    [ -n "$(lacks second)" ] && echo "$device" || echo "$second"
}

# What every server is started with.
common=()
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
    "$python" app.py launch --model "$model" --port "${url##*:}" --log-level warning ${common[@]+"${common[@]}"} "$@" &
    servers+=($!)
    "$python" scripts/ask.py "$url" "$!"
}

# Compare a server's answers; the other arguments are those of gpu_answers.py.
beside_a_cpu() {
    local ours=$1
    shift
    serve --role mixed --mixed cpu --share-devices
    "$python" scripts/gpu_answers.py "$ours" "$url" "$@"
}

# The ladder's child takes the current device, which is the first one that is visible.
kernels() {
    "$python" -m pytest -m "not long" tests/gpu_ops/triton "$@"
}

work() {
    case $1 in
        kernels)
            CUDA_VISIBLE_DEVICES=${device##*:} kernels tests/runtime/cache tests/runtime/transfer \
                tests/runtime/disaggregation tests/runtime/worker/test_device_memory.py ;;
        second) CUDA_VISIBLE_DEVICES=${second##*:} kernels ;;
        pair)
            local over=()
            [ "$device" = cpu ] || over=(--kv-connector cuda)
            serve --prefill "$device" --decode "$(other_device)" --share-devices --kv-cache-memory 1GiB \
                --allow-chaos ${over[@]+"${over[@]}"}
            "$python" app.py chaos --port "${url##*:}" --minutes 1 --faults kill --seed 7
            beside_a_cpu "$url" --long ;;
        alike)
            serve --prefill "$device" --decode "$device" --share-devices --deterministic --kv-cache-memory 1GiB
            beside_a_cpu "$url" --alike ;;
        replay)
            serve --role mixed --mixed "$device" --share-devices --deterministic --max-model-len 512 \
                --kv-cache-memory 32MiB
            beside_a_cpu "$url" --alike ;;
        adapters)
            local own rank
            own=$(mktemp -d)
            for rank in 8 16 40; do
                "$python" scripts/random_adapter.py "$model" "$own/$rank" --rank "$rank" --seed "$rank"
                common+=(--adapter "rank-$rank=$own/$rank")
            done
            serve --prefill "$device" --decode "$device" --share-devices --deterministic --kv-cache-memory 1GiB
            beside_a_cpu "$url" --alike --models ,rank-8,rank-16,rank-40
            rm -r "$own" ;;
        hybrid)
            local folder
            folder=$(mktemp -d)
            PYTHONPATH=.:tests/support/models "$python" -c 'import pathlib, sys, app, tiny_hybrid
tiny_hybrid.write_tiny_hybrid(pathlib.Path(sys.argv[1]), "bfloat16")' "$folder"
            model=$folder
            serve --prefill "$device" --decode "$device" --share-devices --deterministic --kv-cache-memory 1GiB
            beside_a_cpu "$url" --alike
            rm -r "$folder" ;;
        ranks | fast)
            model=$divided
            local arithmetic=()
            [ "$1" = ranks ] || arithmetic=(--tensor-parallel-arithmetic fast)
            serve --role mixed --mixed "$([ "$device" = cpu ] && echo cpu:0+cpu:1 || echo "$device+$second")" \
                --share-devices --kv-cache-memory 1GiB ${arithmetic[@]+"${arithmetic[@]}"}
            beside_a_cpu "$url" ;;
        attention)
            "$python" scripts/gpu_attention.py --device "$device"
            local name
            for name in $("$python" scripts/gpu_attention.py --installed); do
                serve --prefill "$device" --decode "$device" --share-devices --kv-cache-memory 1GiB \
                    --attention-backend "$name"
                beside_a_cpu "$url" --long
                stop
                "$python" scripts/gpu_bench.py --device "$device" --attention-backend "$name" --record
            done ;;
        parts)
            "$python" scripts/gpu_parts.py --device "$device"
            [[ " $("$python" scripts/gpu_parts.py --device "$device" --usable) " == *" draws=flashinfer "* ]] || return 0
            serve --role mixed --mixed "$device" --share-devices --kv-cache-memory 1GiB \
                --kernel-backend draws=flashinfer
            beside_a_cpu "$url" ;;
        figures)
            if [ "$device" = cpu ]; then
                "$python" scripts/gpu_bench.py --device cpu --shape tiny
            else
                "$python" scripts/gpu_bench.py --device "$device" --second "$(other_device)" --record
            fi ;;
        sanitizer)
            CUDA_VISIBLE_DEVICES=${device##*:} compute-sanitizer --target-processes all --error-exitcode 9 \
                "$python" -m pytest -m "not long" tests/gpu_ops/triton -k device ;;
    esac
}

if [ -n "$alone" ]; then
    work "${chosen[0]}"
    exit
fi

prepared=
prepare() {
    [ -z "$prepared" ] || return 0
    prepared=yes
    make_venv "$venv" test
    [ "$device" = cpu ] || "$python" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())' ||
        fail "torch in $venv finds no GPU: install a build of torch for your GPU there (pip install --force-reinstall torch)."
}

[ "$device" = cpu ] || prepare
said=()
failed=0
for step in "${chosen[@]}"; do
    reason=$(lacks "$step")
    if [ -n "$reason" ]; then
        said+=("$step: left out, $reason")
        continue
    fi
    prepare
    echo "== $step"
    begun=$SECONDS
    if timeout --kill-after 30 "$limit" bash "$0" --alone --venv "$venv" --device "$device" --second "$second" \
        ${given:+--model "$given"} "$step"; then
        partly=$(lacks_in_part "$step")
        said+=("$step: proved in $((SECONDS - begun)) s${partly:+, but between two devices: left out, $partly}")
    else
        said+=("$step: FAILED after $((SECONDS - begun)) s")
        failed=1
    fi
done
printf '%s\n' "" "On $device:" "${said[@]}"
exit "$failed"
