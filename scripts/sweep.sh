# SPDX-License-Identifier: Apache-2.0
# Sourced by the sweep_*.sh scripts: launch, measure a point, stop; every point that was measured is kept, so that the same
# command goes on where it was interrupted. `parse_sweep` reads the options all sweeps have:
#   --out DIR        where results go (default: sweeps/NAME)
#   --points LIST    what to measure, in quotes
#   --requests N     requests of one run (default: the load generator's own)
#   --lengths FILE   CSV of recorded conversation lengths instead of 256 tokens in, 64 out
#   --vocabulary N   random token ids lie below this, for models with fewer than 40,000
#   --port PORT      where the launches serve (default: 8123)
#   -- FLAGS         more flags for each launch
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
. scripts/venv.sh

parse_sweep() {
    name=$1 points=$2
    shift 2
    out= requests= lengths= vocabulary= port=8123 flags=()
    while [ $# -gt 0 ]; do
        case $1 in
            --out) out=${2:?--out needs a folder}; shift ;;
            --points) points=${2:?--points needs a list}; shift ;;
            --requests) requests=${2:?--requests needs a number}; shift ;;
            --lengths) lengths=$(realpath -e "${2:?--lengths needs a file}") || fail "There is no file $2."; shift ;;
            --vocabulary) vocabulary=${2:?--vocabulary needs a number}; shift ;;
            --port) port=${2:?--port needs a number}; shift ;;
            -h | --help) sed -n '3,/^[^#]/s/^# \{0,1\}//p' "$0"; sed -n '4,11s/^# *//p' scripts/sweep.sh; exit ;;
            --) shift; flags=("$@"); break ;;
            *) fail "There is no option $1: try --help." ;;
        esac
        shift
    done
    out=${out:-sweeps/$name}
    python=${PYTHON:-.venv/bin/python}
    [ -x "$(command -v "$python")" ] || fail "There is no $python: run scripts/quickstart.sh first, or set PYTHON."
    mkdir -p "$out/points"
    keep_settings
}

# A folder holds one sweep, so that points of another load or another launch never stand beside these as if comparable.
keep_settings() {
    local settings="$name requests=$requests lengths=$lengths vocabulary=$vocabulary devices=${DEVICES:-} flags=${flags[*]-}"
    if [ -f "$out/settings" ] && [ "$(cat "$out/settings")" != "$settings" ]; then
        fail "$out holds a sweep with other settings ($(cat "$out/settings")): give another --out, or remove that folder."
    fi
    printf '%s\n' "$settings" >"$out/settings"
}

launcher=
stop_launch() {
    [ -n "$launcher" ] || return 0
    # A shell's background processes ignore SIGINT until they install a handler; a new process has none yet.
    kill -TERM "$launcher" 2>/dev/null || true
    wait "$launcher" || true
    launcher=
}
trap stop_launch EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# start_launch FLAGS: returns once it is ready.
start_launch() {
    # The log is emptied here and now, so that an earlier launch's lines are not read as this one's.
    : >"$out/launch.log"
    "$python" app.py launch --port "$port" "$@" ${flags[@]+"${flags[@]}"} >"$out/launch.log" 2>&1 &
    launcher=$!
    # tail ends with the launcher, however that ends.
    tail -n +1 -F --pid="$launcher" "$out/launch.log" 2>/dev/null | grep -qm1 'ready on' || true
    grep -q 'ready on' "$out/launch.log" || { tail -n 5 "$out/launch.log" >&2; fail "The launch did not become ready: see $out/launch.log."; }
}

# start_ratio P:D: a launch of so many prefill and decode workers, or of D mixed ones for 0:D, on DEVICES.
start_ratio() {
    local prefill=${1%:*} decode=${1#*:} first second devices workers
    first="cpu*$prefill" second="cpu*$decode"
    if [ -n "${DEVICES:-}" ]; then
        IFS=, read -ra devices <<<"$DEVICES"
        [ "$((prefill + decode))" -le "${#devices[@]}" ] || fail "$1 needs $((prefill + decode)) devices: DEVICES lists $DEVICES."
        first=$(IFS=,; echo "${devices[*]:0:prefill}") second=$(IFS=,; echo "${devices[*]:prefill:decode}")
    fi
    workers=(--prefill "$first" --decode "$second")
    [ "$prefill" != 0 ] || workers=(--role mixed --mixed "$second")
    [ -n "${DEVICES:-}" ] || [ "$((prefill + decode))" -le "$(nproc)" ] || workers+=(--share-devices)
    start_launch "${workers[@]}"
}

is_measured() { [ -f "$out/points/$1.json" ]; }

# measure POINT FLAGS-OF-THE-LOAD-GENERATOR: its line appears whole or not at all.
measure() {
    local point=$1
    shift
    echo "measuring $name $point" >&2
    rm -f "$out/points/$point.raw"
    "$python" app.py bench "http://127.0.0.1:$port" --json --raw "$out/points/$point.raw" \
        ${requests:+--requests "$requests"} ${lengths:+--lengths "$lengths"} ${vocabulary:+--vocabulary "$vocabulary"} \
        "$@" >"$out/points/$point.part" 2>"$out/bench.log" ||
        { cat "$out/bench.log" >&2; fail "Measuring $point failed: run the same command again to go on from here."; }
    mv "$out/points/$point.part" "$out/points/$point.json"
}

write_tables() {
    local point files=()
    for point in $points; do files+=("$out/points/$point.json"); done
    "$python" scripts/sweep_table.py "$name" "$out/$name" "${files[@]}"
    echo "results: $out/$name.csv and $out/$name.md" >&2
}
