# SPDX-License-Identifier: Apache-2.0
"""Workers with tiers below their KV cache: a conversation that was evicted is found again, with the same tokens."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from open_resources import nothing_left
from tiers import wait_until_idle
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt, told

from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.errors import ModelError
from pontil.runtime.proxy.routing.held_prefixes import short_key
from pontil.runtime.worker.start import bits_identity, kv_tiers

Open = Callable[..., PromptWorker]
# Blocks of the tiny model's KV cache; the pool has room for a few prompts.
SETTINGS: dict[str, Any] = {"kv_cache_memory": 512 << 10}
MEMORY: dict[str, Any] = {"kv_tier_memory": 16 << 20}


@pytest.fixture
def worker(proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Return what opens a worker for which every read is worth its time, and has it registered."""
    monkeypatch.setattr(kv_tiers, "seconds_of_token", lambda engine, tokens: 60.0)

    def opened(**settings: Any) -> PromptWorker:
        made = open_worker(model, tmp_path, "decode:0", "decode", **SETTINGS, **settings)
        proxy.admit(made)
        return made

    return opened


def disk(folder: Path) -> dict[str, Any]:
    return {"kv_tier_disk": str(folder / "kv"), "kv_tier_disk_size": 16 << 20}


def ask(
    proxy: ScriptedProxy, worker: PromptWorker, name: str, tokens: list[int], salt: str = "a"
) -> tuple[list[int], int]:
    """Return the tokens of an answer and the number of cached ones of its prompt."""
    proxy.submit(worker, name, tokens, drawn(8), salt=salt)
    (answer,) = proxy.finish(name)
    assert not answer.failures, answer.failures
    cached = next(frame.cached_tokens for frame in answer.frames if frame.cached_tokens is not None)
    return answer.ids, cached


def evict(proxy: ScriptedProxy, worker: PromptWorker) -> None:
    """Use every block of the pool for other prompts."""
    length = worker.machine.config.max_model_len - 8
    for number in range(2 + worker.machine.pool.capacity * 16 // length):
        ask(
            proxy, worker, f"other {number} {worker.incarnation}", prompt(length)[::-1][number:], salt=f"other {number}"
        )
    assert worker.machine.scheduler.tier.store is not None
    wait_until_idle(worker.machine.scheduler.tier.store)


@pytest.mark.parametrize("kind", ["memory", "disk"])
def test_an_evicted_conversation_is_read_back(proxy: ScriptedProxy, worker: Open, kind: str, tmp_path: Path) -> None:
    made = worker(**(MEMORY if kind == "memory" else disk(tmp_path)))
    tokens, cached = ask(proxy, made, "first", prompt(100))
    assert cached == 0
    evict(proxy, made)
    assert ask(proxy, made, "again", prompt(100)) == (tokens, 99)
    # Another salt finds nothing.
    assert ask(proxy, made, "stranger", prompt(100), "b") == (tokens, 0)
    counters, gauges = made.load().counters, made.load().gauges
    assert counters["kv_tier_hit_tokens"] == 99 and counters["kv_tier_loaded_blocks"] == 7
    assert counters["kv_tier_failures"] == counters["kv_tier_damaged_blocks"] == 0
    assert gauges is not None and gauges[f"kv_tier_{kind}_blocks"] > 7 and gauges[f"kv_tier_{kind}_least_tokens"] == 16
    everyone_clean(proxy)


def test_another_process_finds_what_a_disk_has(
    proxy: ScriptedProxy, worker: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made = worker(**disk(tmp_path))
    tokens, _ = ask(proxy, made, "first", prompt(100))
    evict(proxy, made)
    for settings, found in (({}, 99), ({"kv_cache_dtype": "int8"}, 0)):
        proxy.workers.remove(made)
        made.close()
        made = worker(**disk(tmp_path), **settings)
        answer, cached = ask(proxy, made, f"again {found}", prompt(100))
        assert cached == found and (answer == tokens or settings)
    assert "is of another model, type, size or version: it begins empty" in caplog.text


def test_other_code_finds_nothing_on_a_disk(
    proxy: ScriptedProxy, worker: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may compute other bits for the same prompt, as may another version of torch."""
    made = worker(**disk(tmp_path))
    tokens, _ = ask(proxy, made, "first", prompt(100))
    for name, changed in (("version", "2.99.0"), ("code", "0"), ("same", "")):
        evict(proxy, made)
        proxy.workers.remove(made)
        made.close()
        if name == "version":
            monkeypatch.setattr(torch, "__version__", changed)
        elif name == "code":
            (tmp_path / "kernel.cpp").write_text(changed)
            monkeypatch.setattr(bits_identity, "CODE", (*bits_identity.CODE, str(tmp_path)))
        made = worker(**disk(tmp_path))
        assert ask(proxy, made, name, prompt(100)) == (tokens, 99 if name == "same" else 0)


def test_the_proxy_is_told_what_tiers_have(proxy: ScriptedProxy, worker: Open, tmp_path: Path) -> None:
    """An evicted prefix stays known until the last tier drops it, and the next process tells what a disk has."""
    made = worker(**disk(tmp_path))
    ask(proxy, made, "first", prompt(100))
    asked = {short_key(key) for key in full_keys(prompt(100), "a", 16)}
    evict(proxy, made)
    assert not asked & {short_key(key) for key in made.machine.pool.index.blocks}
    proxy.turn_until(lambda: asked <= told(proxy, made))
    proxy.workers.remove(made)
    made.close()
    made = worker(**disk(tmp_path))
    proxy.turn_until(lambda: asked <= told(proxy, made))
    assert made.machine.scheduler.tier.store is not None
    (tier,) = made.machine.scheduler.tier.store.chain.tiers
    made.machine.scheduler.tier.store.chain.switch_off(tier, OSError(5, "Input/output error"))
    proxy.turn_until(lambda: not told(proxy, made))


def test_a_tier_that_is_in_use_or_unusable_costs_no_start(
    proxy: ScriptedProxy, worker: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "kv").touch()
    made = worker(**disk(tmp_path))
    assert "the disk tier in" in caplog.text and "this worker keeps no evicted prefixes there" in caplog.text
    assert ask(proxy, made, "one", prompt(40))[1] == 0
    evict(proxy, made)
    assert made.load().counters["kv_tier_stored_blocks"] == 0


def test_a_tier_from_which_nothing_comes_sooner_is_not_used(
    proxy: ScriptedProxy, worker: Open, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(kv_tiers, "seconds_of_token", lambda engine, tokens: 1e-12)
    made = worker(**MEMORY)
    assert "the memory tier of the KV cache is not used: computing is as fast as reading" in caplog.text
    assert made.machine.scheduler.tier.store is not None and not made.machine.scheduler.tier.store.chain.tiers


def test_the_speed_of_computing_is_measured(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    made = open_worker(model, tmp_path, "decode:0", "decode", **SETTINGS, **MEMORY)
    proxy.admit(made)
    assert (
        made.machine.scheduler.tier.store is not None
        and 0 < made.machine.scheduler.tier.store.costs.per_token < 60
        and 0 < made.machine.scheduler.tier.store.costs.base < 60
    )
    # Measured prompts are in no ledger and in no cache.
    assert made.machine.engine.prompt_computed > 64 and made.load().counters["prompt_tokens_computed"] == 0
    assert not made.machine.pool.index.blocks and made.machine.scheduler.prefix.queried == 0


def test_a_worker_of_several_ranks_has_no_tier(model: Path, tmp_path: Path, proxy: ScriptedProxy) -> None:
    made = open_worker(model, tmp_path, "decode:0", "decode", **SETTINGS)
    proxy.admit(made)
    ranked = replace(made.config, ranks=2, kv_tier_memory=1 << 20)
    with pytest.raises(ModelError, match="--kv-tier is for workers of one device"):
        kv_tiers.open_tiers(ranked, made.machine, lambda: None, made.sockets.failures)


def test_closing_gives_back_tiers_too(model: Path, tmp_path: Path) -> None:
    def serve() -> None:
        open_worker(model, tmp_path, "decode:0", "decode", **SETTINGS, **MEMORY, **disk(tmp_path)).close()

    serve()
    with nothing_left():
        serve()
