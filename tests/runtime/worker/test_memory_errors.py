# SPDX-License-Identifier: Apache-2.0
"""Requests for which the memory of a worker's device does not suffice: they end with 503, and the worker goes on."""

import pytest
import torch
from workers import PromptWorker, ScriptedProxy, everyone_clean, greedy, prompt

from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT
from pontil.runtime.engine.runner.model_runner import ModelRunner
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Tile


def limit(worker: PromptWorker, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a worker's memory suffice for tiles of so many rows only."""
    runner = worker.machine.engine.runner
    assert isinstance(runner, ModelRunner)
    run_tile = runner.run_tile

    def limited(tile: Tile) -> list[Sampled]:
        if tile.rows > rows:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run_tile(tile)

    monkeypatch.setattr(runner, "run_tile", limited)


def test_a_pair_goes_on_without_the_request_that_was_too_large(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(40), greedy(6, ignore_eos=True))
    (expected,) = proxy.finish("before")
    with monkeypatch.context() as patch:
        for worker in pair:
            limit(worker, 60, patch)
        proxy.submit_pair(prefill, decode, "split", prompt(200), greedy(6, ignore_eos=True))
        proxy.submit(decode, "whole", prompt(200), greedy(6, ignore_eos=True))
        proxy.submit_pair(prefill, decode, "small", prompt(40), greedy(6, ignore_eos=True))
        split, whole, small = proxy.finish("split", "whole", "small")
    assert [(one.reason, one.status) for one in (split.failures[0], whole.failures[0])] == [(MEMORY_RAN_OUT, 503)] * 2
    assert small.ids == expected.ids and not small.failures
    proxy.cancel_everywhere("split")
    everyone_clean(proxy)
    # A prompt that was not computed to its end has no count of computed tokens.
    assert [frame.computed_tokens for frame in (*split.frames, *whole.frames)] == [None] * 2
    # The part of the prompt that was computed before memory ran out is not taken for all of it.
    proxy.submit_pair(prefill, decode, "again", prompt(200), greedy(6, ignore_eos=True))
    proxy.submit(decode, "whole again", prompt(200), greedy(6, ignore_eos=True, seed=2))
    again, whole_again = proxy.finish("again", "whole again")
    assert len(again.ids) == 6 and again.ids == whole_again.ids
