#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measure one launch at rising request rates (a second, Poisson): one CSV and one Markdown table; resumes.
#   scripts/sweep_rate.sh [--points "0.5 1 2 4"] [options] [-- flags of `pontil launch`]
. "$(dirname "$0")/sweep.sh"
parse_sweep rate "0.5 1 2 4" "$@"
requests=${requests:-50}
for point in $points; do
    is_measured "$point" && continue
    [ -n "$launcher" ] || start_launch
    measure "$point" --request-rate "$point"
done
write_tables
