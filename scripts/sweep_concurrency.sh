#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measure one launch at rising concurrency: one CSV and one Markdown table; the same command again goes on where it ended.
#   scripts/sweep_concurrency.sh [--points "1 2 4 8 16 32"] [options] [-- flags of `pontil launch`]
. "$(dirname "$0")/sweep.sh"
parse_sweep concurrency "1 2 4 8 16 32" "$@"
for point in $points; do
    is_measured "$point" && continue
    [ -n "$launcher" ] || start_launch
    measure "$point" --concurrency "$point"
done
write_tables
