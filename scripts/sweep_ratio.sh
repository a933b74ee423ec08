#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measure launches with different numbers of prefill and decode workers on the CPU, P:D, at one concurrency (--points lists
# the ratios; CONCURRENCY, default 8, is the load): one CSV and one Markdown table; resumes. 0:N has N workers for both.
#   [CONCURRENCY=8] scripts/sweep_ratio.sh [--points "1:1 1:2 2:1"] [options] [-- flags of `pontil launch`]
. "$(dirname "$0")/sweep.sh"
parse_sweep ratio "0:1 1:1 1:2 2:1" "$@"
concurrency=${CONCURRENCY:-8}
for point in $points; do
    is_measured "$point" && continue
    prefill=${point%:*} decode=${point#*:}
    workers=(--prefill "cpu*$prefill" --decode "cpu*$decode")
    [ "$prefill" != 0 ] || workers=(--role mixed --mixed "cpu*$decode")
    [ "$((prefill + decode))" -le "$(nproc)" ] || workers+=(--share-devices)
    start_launch "${workers[@]}"
    measure "$point" --concurrency "$concurrency"
    stop_launch
done
write_tables
