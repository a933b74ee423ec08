#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Compare one prefill and two decode workers with three mixed workers on the same devices: the highest request rate (a second,
# Poisson) at which 90 % of requests keep a median time between tokens of 30 ms, and of 40 ms. A point is P:D@MILLISECONDS.
# One CSV and one Markdown table; resumes. The search of each point begins at RATE, default 1.
#   [RATE=1] [DEVICES=0,1,2] scripts/sweep_goodput.sh [--points "1:2@30 0:3@30"] [options] [-- flags of `pontil launch`]
. "$(dirname "$0")/sweep.sh"
parse_sweep goodput "1:2@30 0:3@30 1:2@40 0:3@40" "$@"
requests=${requests:-50}
for point in $points; do
    is_measured "$point" && continue
    start_ratio "${point%@*}"
    measure "$point" --find-rate --request-rate "${RATE:-1}" --itl-limit "${point#*@}" --share 0.9
    stop_launch
done
write_tables
