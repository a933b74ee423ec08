# SPDX-License-Identifier: Apache-2.0
"""Workers of a model with recurrent layers: handoffs and failover go on from states, with the tokens of one worker
alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from effort import by_default
from kept_places import WorkerPlace
from staged import StagedStorage
from tiers import wait_until_idle
from tiny_hybrid import write_tiny_hybrid
from workers import ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.cache.layout import layout_for
from pontil.runtime.cache.prefix import STATE_TOKENS
from pontil.runtime.loaders.hf.config import read_hf_config
from pontil.runtime.worker.start import kv_tiers, loading

LENGTH = 300
SETTINGS: dict[str, Any] = {"max_model_len": 800, "kv_cache_memory": 8 << 20, "kernels": "auto"}


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hybrid")
    write_tiny_hybrid(folder)
    return folder


@pytest.fixture
def place(proxy: ScriptedProxy, hybrid: Path, tmp_path: Path) -> Iterator[WorkerPlace]:
    made = WorkerPlace(proxy, hybrid, tmp_path, "mixed:0", "mixed")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("connector", "dtype", "cells"),
    by_default(
        {("shm", "bfloat16", "int8")},
        [("shm", "bfloat16", "int8"), ("tcp", "float32", "auto"), ("tcp", "bfloat16", "fp8")],
    ),
)
def test_two_workers_make_the_tokens_of_one(
    proxy: ScriptedProxy, hybrid: Path, tmp_path: Path, connector: str, dtype: str, cells: str
) -> None:
    own = SETTINGS | {"kv_connector": connector, "dtype": dtype, "kv_cache_dtype": cells}
    prefill, decode = (open_worker(hybrid, tmp_path, f"{role}:0", role, **own) for role in ("prefill", "decode"))
    assert prefill.machine.kernels != "torch" and prefill.machine.layout.block_size == STATE_TOKENS
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "split", prompt(LENGTH), drawn(12), salt="same")
    proxy.submit(decode, "whole", prompt(LENGTH), drawn(12))
    split, whole = proxy.finish("split", "whole")
    assert split.ids == whole.ids and len(whole.ids) == 12
    # The first block is known by now: the other one alone is pulled.
    proxy.submit_pair(prefill, decode, "again", prompt(LENGTH), drawn(12), salt="same")
    (again,) = proxy.finish("again")
    assert again.ids == whole.ids
    everyone_clean(proxy)
    counts, size = decode.decode.counts, decode.machine.layout.block_bytes
    assert (counts.complete, counts.bytes) == (2, 3 * size)


@pytest.mark.parametrize("length", [42, STATE_TOKENS, LENGTH])
def test_a_kept_prompt_is_gone_on_with(proxy: ScriptedProxy, hybrid: Path, tmp_path: Path, length: int) -> None:
    """The states that come are behind the last position, which is computed once more: from the boundary before it."""
    prefill, decode = (open_worker(hybrid, tmp_path, f"{role}:0", role, **SETTINGS) for role in ("prefill", "decode"))
    proxy.admit(prefill, decode)
    proxy.submit(prefill, "first", prompt(length), greedy(1), phase="hold", transfer_id="t")
    (first,) = proxy.finish("first")
    place: dict[str, Any] = {"peer": prefill.incarnation, "peer_endpoint": prefill.peers_in.endpoint}
    proxy.submit(decode, "claimed", prompt(length), greedy(10), phase="claim", transfer_id="t", **place)
    proxy.submit(decode, "whole", prompt(length), greedy(10))
    claimed, whole = proxy.finish("claimed", "whole")
    assert claimed.ids == whole.ids and claimed.ids[:1] == first.ids
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (1, 0)


def test_blocks_with_states_are_handed_over_from_a_device(
    proxy: ScriptedProxy, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Staged in host memory, as the blocks of a GPU are, and copied for each choice."""
    monkeypatch.setattr(loading, "KVStorage", StagedStorage)
    own = SETTINGS | {"kernels": "torch"}
    prefill, decode = (open_worker(hybrid, tmp_path, f"{role}:0", role, **own) for role in ("prefill", "decode"))
    assert prefill.machine.storage.staged and prefill.machine.layout.has_states
    proxy.admit(prefill, decode)
    for name, length in (("split", LENGTH), ("filled", STATE_TOKENS)):
        proxy.submit_pair(prefill, decode, name, prompt(length), drawn(6, n=2))
        proxy.submit(decode, f"whole-{name}", prompt(length), drawn(6, n=2))
    names = ["split", "filled", "whole-split", "whole-filled"]
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(2) for name in names))
    answers = [[proxy.answers[name].choice(number) for number in range(2)] for name in names]
    assert answers[:2] == answers[2:]
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (2, 0)


def test_a_worker_that_is_killed_leaves_blocks_and_ends(place: WorkerPlace) -> None:
    worker = place.start(**SETTINGS)
    assert worker.machine.recorder is not None
    place.proxy.submit(worker, "cut", prompt(LENGTH), drawn(100), salt="same")
    place.proxy.turn_until(lambda: "cut" in place.proxy.answers and len(place.proxy.answers["cut"].ids) > 8)
    worker.machine.recorder.rest(60.0)
    place.end()
    place.start(**SETTINGS)
    first, cached = place.ask(prompt(LENGTH), 12)
    assert cached == STATE_TOKENS
    assert place.ask([*prompt(LENGTH), 7, 8])[1] == LENGTH
    place.record()
    place.end()
    place.start(**SETTINGS)
    assert place.ask([*prompt(LENGTH), *first, 7, 8])[1] == LENGTH + 11
    other = WorkerPlace(place.proxy, place.model, place.folder, "mixed:1", "mixed")
    other.start(**SETTINGS)
    assert other.ask(prompt(LENGTH), 12) == (first, 0)
    other.close()


def test_a_turn_goes_on_from_what_the_answer_filled(place: WorkerPlace) -> None:
    place.start(**SETTINGS)
    first, _ = place.ask(prompt(250), 40)
    turn = [*prompt(250), *first, 7, 8]
    again = place.ask(turn)
    assert again[1] == 250 + 39
    other = WorkerPlace(place.proxy, place.model, place.folder, "mixed:1", "mixed")
    other.start(**SETTINGS, prefix_caching=False)
    assert other.ask(turn) == (again[0], 0)
    other.close()


def test_evicted_states_are_read_back(
    proxy: ScriptedProxy, hybrid: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of whole blocks, and those of the end of an answer."""
    monkeypatch.setattr(kv_tiers, "seconds_of_token", lambda engine, tokens: 60.0)
    layout = layout_for(read_hf_config(hybrid), 16, "float32")
    own = SETTINGS | {"kv_cache_memory": 5 * layout.block_bytes, "max_model_len": 700, "kv_tier_memory": 8 << 20}
    worker = open_worker(hybrid, tmp_path, "mixed:0", "mixed", **own)
    proxy.admit(worker)

    def ask(name: str, tokens: list[int]) -> tuple[list[int], int]:
        proxy.submit(worker, name, tokens, drawn(8), salt="same")
        (answer,) = proxy.finish(name)
        assert worker.machine.scheduler.tier.store is not None
        wait_until_idle(worker.machine.scheduler.tier.store)
        return answer.ids, answer.frames[0].cached_tokens or 0

    first, other = ask("first", prompt(600)), prompt(690)[::-1]
    ask("other", other)
    assert ask("again", prompt(600)) == (first[0], 2 * STATE_TOKENS)
    # Prefixes are evicted from their ends.
    assert worker.load().counters["kv_tier_hit_tokens"] == STATE_TOKENS
    ask("once more", other)
    assert ask("turn", [*prompt(600), *first[0], 7, 8])[1] == 607
    everyone_clean(proxy)
