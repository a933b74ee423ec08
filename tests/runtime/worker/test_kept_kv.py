# SPDX-License-Identifier: Apache-2.0
"""Workers whose KV outlives them: the next process serves the prefixes of the one before, with the same tokens."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import by_default
from kept_places import WorkerPlace
from tiny_llama import write_tiny_llama
from workers import ScriptedProxy, drawn, prompt, told

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.proxy.routing.held_prefixes import short_key

LONG = prompt(41)


@pytest.fixture
def place(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> Iterator[WorkerPlace]:
    made = WorkerPlace(proxy, model, tmp_path, "mixed:0", "mixed")
    yield made
    made.close()


def test_the_next_worker_has_cached_what_the_one_before_had(place: WorkerPlace) -> None:
    """The prompt's last block is not full, and the answer fills it: both are found, and a conversation goes on."""
    place.start()
    first, cached = place.ask(LONG, 20)
    assert cached == 0
    turn = [*LONG, *first, 7, 8, 9]
    assert place.ask(turn)[1] == 48
    expected = [place.ask(LONG, 20), place.ask(turn)]
    assert [cached for _, cached in expected] == [40, 63]
    place.record()
    place.end()
    place.start()
    assert [place.ask(LONG, 20), place.ask(turn)] == expected


def test_a_worker_that_is_killed_in_mid_answer_leaves_the_prompt(place: WorkerPlace) -> None:
    worker = place.start()
    place.proxy.submit(worker, "cut", LONG, drawn(100), salt="same")
    place.proxy.turn_until(lambda: "cut" in place.proxy.answers and len(place.proxy.answers["cut"].ids) > 8)
    recorder = worker.machine.recorder
    assert recorder is not None
    recorder.rest(60.0)
    place.end()
    assert place.start().machine.recorder is not None
    # The last block was being written when the process ended.
    assert place.ask(LONG)[1] == 32


OTHERS: dict[str, Any] = {
    "kv_cache_dtype": "int8", "block_size": 8, "kernels": "torch", "max_model_len": 64, "kv_cache_memory": 4 << 20,
    "deterministic": True,
}  # fmt: skip


@pytest.mark.parametrize("name", by_default({"kv_cache_dtype", "kernels", "kv_cache_memory", "deterministic"}, OTHERS))
def test_other_bits_are_never_reused(place: WorkerPlace, name: str) -> None:
    place.start()
    place.ask(LONG)
    place.record()
    place.end()
    other = place.start(**{name: OTHERS[name]})
    assert other.machine.recorder is not None and other.machine.recorder.restored == 0
    first, cached = place.ask(LONG)
    assert cached == 0 and place.ask(LONG) == (first, 40)


def test_another_revision_of_the_model_finds_nothing(place: WorkerPlace, tmp_path: Path) -> None:
    """Its weights have the same shapes, and may lie at the same place."""
    place.model = tmp_path / "revised"
    write_tiny_llama(place.model)
    place.start()
    place.ask(LONG)
    place.record()
    place.end()
    write_tiny_llama(place.model, seed=1)
    place.start()
    assert place.ask(LONG)[1] == 0


def test_damage_is_dropped_and_computed_again(place: WorkerPlace) -> None:
    worker = place.start()
    expected, _ = place.ask(LONG)
    place.record()
    block = next(iter(worker.machine.pool.index.blocks.values()))
    place.end()
    worker.machine.storage.shared[block][5] ^= 4
    assert place.start().machine.recorder is not None
    assert place.ask(LONG) == (expected, 0)
    assert place.ask(LONG) == (expected, 40)


def test_a_worker_without_prefix_cache_finds_nothing(place: WorkerPlace) -> None:
    place.start()
    place.ask(LONG)
    place.record()
    place.end()
    place.start(prefix_caching=False)
    assert place.ask(LONG)[1] == 0


def test_a_pair_hands_over_from_what_was_left(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    """Each of the two is replaced once: the other one reads the new process's blocks, under epochs of its own."""
    prefill = WorkerPlace(proxy, model, tmp_path, "prefill:0", "prefill")
    decode = WorkerPlace(proxy, model, tmp_path, "decode:0", "decode")
    prefill.start()
    decode.start()
    told = []
    for number, ended in enumerate((None, prefill, decode, None)):
        name = f"r{number}"
        if ended is not None:
            ended.record()
            ended.end()
            ended.start()
        proxy.submit_pair(prefill.worker, decode.worker, name, LONG, drawn(12), salt="same")
        (answer,) = proxy.finish(name)
        told.append((answer.ids, answer.frames[0].cached_tokens))
        assert not answer.failures
    assert told == [(told[0][0], cached) for cached in (0, 40, 40, 40)]
    epochs = prefill.worker.machine.storage.epochs
    assert int(epochs.min()) > 1 << 20
    for one in (prefill, decode):
        one.close()


def test_the_proxy_is_told_what_was_left(place: WorkerPlace) -> None:
    """Before any request comes: by this one is sent where its beginning is. A block that turns out to be damaged is
    told as forgotten."""
    first = place.start()
    place.ask(LONG, 20)
    place.record()
    left = {short_key(key) for key in first.machine.pool.index.blocks}
    damaged = first.machine.pool.index.blocks[next(full_keys(LONG, "same", 16))]
    place.end()
    first.machine.storage.shared[damaged][5] ^= 4
    second = place.start()
    assert left and second.machine.engine.scheduler.prefix.queried == 0
    place.proxy.turn_until(lambda: told(place.proxy, second) == left)
    assert place.ask(LONG)[1] == 0
    place.proxy.turn_until(
        lambda: told(place.proxy, second) == {short_key(key) for key in second.machine.pool.index.blocks}
    )


def test_measuring_a_tier_evicts_nothing_that_was_left(place: WorkerPlace) -> None:
    """A pool that was full when the worker died is full when the next one measures how fast it computes. Its first
    step, which every start makes, takes one block."""
    settings = {"kv_cache_memory": 512 << 10, "kv_tier_memory": 16 << 20}
    first = place.start(**settings)
    for number in range(12):
        place.ask([number + 1, *prompt(100)])
    place.record()
    before = set(first.machine.pool.index.keys)
    assert len(before) == first.machine.pool.capacity
    place.end()
    second = place.start(**settings)
    assert second.machine.recorder is not None and second.machine.recorder.restored == len(before)
    tiers = second.machine.scheduler.tier.store
    assert tiers is not None and 0 < tiers.costs.per_token < 60
    assert len(before - set(second.machine.pool.index.keys)) <= 1
