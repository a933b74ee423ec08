#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measure launches with different numbers of prefill and decode workers, P:D, at one concurrency (--points lists the ratios;
# CONCURRENCY, default 8, is the load): one CSV and one Markdown table; resumes. 0:N has N workers for both. DEVICES lists
# what they run on (0,1,2 for GPUs); without it each has cores of its own where there are enough.
#   [CONCURRENCY=8] [DEVICES=0,1,2] scripts/sweep_ratio.sh [--points "1:1 1:2 2:1"] [options] [-- flags of `pontil launch`]
. "$(dirname "$0")/sweep.sh"
parse_sweep ratio "0:1 1:1 1:2 2:1" "$@"
concurrency=${CONCURRENCY:-8}
for point in $points; do
    is_measured "$point" && continue
    start_ratio "$point"
    measure "$point" --concurrency "$concurrency"
    stop_launch
done
write_tables
