# SPDX-License-Identifier: Apache-2.0
"""Balanced rows of a usage log, for tests to corrupt."""

from pontil.runtime.accounting.usage_tables import CLOSED, OPEN, ProxyRow, RequestRow, ShareRow, UsageRow, WorkerRow

# The start of a day, in seconds.
DAY = 20_000 * 86400.0
REQUEST = RequestRow(
    "mine-1", "x", "mine", "-", "tiny", "mixed:0", CLOSED, "stop", 1, 1, 5, 2, 3, 4, 3, 1, DAY, None, 0.1, 0.5, 3
)
SHARE = ShareRow("mine-1", "w", 0, "whole", 4, 3)
WORKER = WorkerRow("w", "x", "mixed:0", 10, 6, 6, 0, 6, 4, 2, 0, 7, 7, 0, 7, 3, 4)
PROXY = ProxyRow("x", DAY, OPEN, 1, 5, 2, 3, 4, 3, 1)
BALANCED: tuple[UsageRow, ...] = (REQUEST, SHARE, WORKER, PROXY)
