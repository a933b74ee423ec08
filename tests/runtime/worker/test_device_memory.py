# SPDX-License-Identifier: Apache-2.0
"""Workers whose engine computes in memory that peers cannot map, as on GPUs: blocks go from device to device, or
through host memory, of which only the blocks on their way take some."""

from contextlib import AbstractContextManager
from pathlib import Path
from queue import Queue

import pytest
import torch
from staged import EmulatedMemory, PublisherAtOnce, StagedStorage
from workers import ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.disaggregation.publisher import DevicePublisher, PublishedBlocks
from pontil.runtime.worker.start import loading


def pages_in_use(storage: KVStorage) -> int:
    """Return the blocks with something other than zeros in the memory that peers map."""
    return int(storage.shared.any(dim=1).sum())


def memory_of(storage: KVStorage) -> EmulatedMemory:
    assert isinstance(storage.memory, EmulatedMemory)
    return storage.memory


@pytest.mark.parametrize("way", ["auto", "cuda", "shm", "tcp"])
def test_prompts_of_several_requests_are_handed_over(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    whole = open_worker(model, tmp_path, "mixed:0", "mixed")
    monkeypatch.setattr(loading, "KVStorage", StagedStorage)
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", kv_connector=way)
    decode = open_worker(model, tmp_path, "decode:0", "decode", kv_connector=way)
    proxy.admit(whole, prefill, decode)
    lengths = {"short": 5, "long": 90, "longer": 130, "again": 130}
    for name, length in lengths.items():
        proxy.submit(whole, f"{name} whole", prompt(length), drawn(6, seed=length))
        proxy.submit_pair(prefill, decode, name, prompt(length), drawn(6, seed=length))
    proxy.finish(*lengths, *(f"{name} whole" for name in lengths))
    everyone_clean(proxy)
    for name in lengths:
        split, alone = proxy.answers[name], proxy.answers[f"{name} whole"]
        assert split.ids == alone.ids and len(split.ids) == 6 and not split.failures
    assert decode.decode.counts.bytes > 0
    direct = way in ("auto", "cuda")
    assert bool(memory_of(decode.machine.storage).opened) == direct
    storages = [worker.machine.storage for worker in (prefill, decode)]
    proxy.turn_until(lambda: not any(map(pages_in_use, storages)))


def test_blocks_that_are_final_at_a_mark_are_published_behind_that(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others behind everything that was started when that was asked for."""
    layout, behind, told = KVLayout(16, 2, 2, 64, "bfloat16"), list[int](), Queue[list[int]]()
    storage = StagedStorage(layout, 8, torch.device("cpu"))
    memory = memory_of(storage)
    after = memory.after

    def noted(mark: int) -> AbstractContextManager[None]:
        behind.append(mark)
        return after(mark)

    monkeypatch.setattr(memory, "after", noted)
    publisher, then = DevicePublisher(storage, lambda: None), memory.mark()
    for mark in (then, None):
        publisher.publish(PublishedBlocks([1], [layout.kv_heads], True, mark), told.put)
        told.get(timeout=30)
    publisher.close()
    assert behind == [then, then + 1]


def test_a_block_that_two_transfers_read_stays_until_both_have_ended() -> None:
    # A block is a page: smaller ones would share theirs with neighbours, and stay.
    layout = KVLayout(16, 2, 2, 64, "bfloat16")
    storage = StagedStorage(layout, 8, torch.device("cpu"))
    storage.own.fill_(7)
    publisher = PublisherAtOnce(storage, lambda: None)
    told: list[list[int]] = []
    for blocks in ([1, 2], [2, 3]):
        publisher.publish(PublishedBlocks(blocks, [layout.kv_heads], True), told.append)
    publisher.publish(PublishedBlocks([5], [layout.kv_heads], False), told.append)
    assert told == [storage.own_digests(blocks) for blocks in ([1, 2], [2, 3], [5])]
    assert storage.shared.any(dim=1).tolist() == [False, True, True, True, False, False, False, False]
    publisher.forget([1, 2])
    assert storage.shared.any(dim=1).tolist() == [False, False, True, True, False, False, False, False]
    publisher.forget([2, 3])
    publisher.close()
    assert not storage.shared.any()
