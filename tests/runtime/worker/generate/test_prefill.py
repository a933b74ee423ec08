# SPDX-License-Identifier: Apache-2.0
"""The prefill side looks at no block a second time that it has announced."""

from types import SimpleNamespace
from typing import Any, cast

from pontil.runtime.worker.generate.prefill import PrefillSide

BLOCK = 16


class CountedBlocks(list[int]):
    """Blocks, with the number of them that were copied."""

    copied = 0

    def __getitem__(self, place: Any) -> Any:
        found = super().__getitem__(place)
        self.copied += len(found) if isinstance(found, list) else 0
        return found


def test_steps_that_complete_no_block_copy_none() -> None:
    blocks, announced = CountedBlocks(range(1, 1001)), list[list[int]]()
    sequence = SimpleNamespace(blocks=blocks, computed=0)
    job = SimpleNamespace(sent=SimpleNamespace(announced=0), request=SimpleNamespace(sequence=sequence))

    def announce(sent: Any, ready: list[int], now: float) -> None:
        announced.append(ready[sent.announced :])
        sent.announced = len(ready)

    side = SimpleNamespace(
        jobs=SimpleNamespace(open={"a": job}), machine=SimpleNamespace(layout=SimpleNamespace(block_size=BLOCK)),
        kv_sender=SimpleNamespace(announce=announce),
    )  # fmt: skip
    for computed in (0, 5, 64, 64, 70, 79, 80, *[80] * 100):
        sequence.computed = computed
        PrefillSide.announce(cast(PrefillSide, side), 0.0)
    assert announced == [[1, 2, 3, 4], [5]] and blocks.copied == 4 + 5
