# SPDX-License-Identifier: Apache-2.0
"""The cost of a decode worker's turn with open pulls: python scripts/bench_open_pulls.py [pulls …].

Nothing is copied: a poll of the KV receiver with so many transfers, each of which has one pull, in milliseconds.
"""

import statistics
import sys
import time
from pathlib import Path
from typing import Any, cast
from unittest.mock import Mock

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import app  # noqa: E402, F401
from pontil.runtime.cache.layout import KVLayout  # noqa: E402
from pontil.runtime.cache.storage import KVStorage  # noqa: E402
from pontil.runtime.disaggregation.joint_connector import JointConnector  # noqa: E402
from pontil.runtime.disaggregation.rank_pools import RankPools  # noqa: E402
from pontil.runtime.disaggregation.receiver import KVReceiver  # noqa: E402
from pontil.runtime.transfer.connector import Pull  # noqa: E402
from pontil.runtime.wire.messages import ChunkReady  # noqa: E402

LAYOUT = KVLayout(16, 1, 1, 8, "float32")
TURNS = 50


class SilentConnector:
    """A connector whose pulls never end."""

    received = 0

    def attach(self, peer: str, descriptor: dict[str, Any], heads: range | None = None) -> None: ...

    def pull(self, pull: Pull) -> None:
        self.received += 1
        pull.reader = self

    def poll(self) -> list[Pull]:
        return []

    def cancel(self, pull: Pull) -> None: ...


def turn(count: int) -> float:
    """Return the median milliseconds of a turn with so many open pulls."""
    storage = KVStorage(LAYOUT, 9, torch.device("cpu"))
    connector = JointConnector(cast("Any", SilentConnector()), storage)
    receiver = KVReceiver(connector, RankPools(storage), cast("Any", Mock()))
    connector.attach("p", {})
    for number in range(count):
        transfer = receiver.begin(f"t{number}", "p", 2, 0.0)
        receiver.announced(transfer, ChunkReady("p", "d", f"t{number}", 1, 1, 0, [1], [0]), [1], 0.0)
    taken = []
    for _ in range(TURNS):
        begun = time.perf_counter()
        receiver.poll(0.1)
        taken.append(time.perf_counter() - begun)
    return 1000 * statistics.median(taken)


if __name__ == "__main__":
    for count in map(int, sys.argv[1:] or ("64", "256", "512", "1024")):
        print(f"{count:5d} open pulls: {turn(count):7.3f} ms a turn")
