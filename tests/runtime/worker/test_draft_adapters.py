# SPDX-License-Identifier: Apache-2.0
"""Adapters in workers with a draft model, which guesses without them: the answers of a worker that guesses nothing."""

from pathlib import Path
from typing import Any

import pytest
from always_draft import AlwaysDraft
from tiny_adapters import write_some
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.sampling_params import SamplingParams

PROMPT = prompt(70)
# Without an adapter, with one, with another one, and with that from a position on.
ASKED = {"plain": ("", 0), "one": ("one", 0), "two": ("two", 0), "late": ("two", 37)}
KINDS: dict[str, SamplingParams] = {
    "greedy": greedy(30, ignore_eos=True, logprobs=2),
    "drawn": drawn(30, top_p=0.9, seed=5),
    "choices": drawn(20, n=2),
}


def draft_always(worker: PromptWorker) -> None:
    drafter = worker.machine.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter)
    drafter.policy = AlwaysDraft()


def ended(
    proxy: ScriptedProxy, name: str, params: SamplingParams
) -> tuple[list[list[int]], dict[tuple[int, int], Any]]:
    proxy.turn_until(lambda: name in proxy.answers and proxy.answers[name].ended(params.n))
    answer = proxy.answers[name]
    assert not answer.failures, name
    logprobs = {
        (frame.choice, index): entries
        for frame in answer.frames
        for index, entries in enumerate(frame.logprobs or (), frame.index)
    }
    return [answer.choice(number) for number in range(params.n)], logprobs


@pytest.mark.parametrize("target", ["dense", "mixture"])
@pytest.mark.parametrize("itself", [True, False], ids=["the model itself", "another model"])
def test_guesses_change_no_answer_of_an_adapter(
    proxy: ScriptedProxy, tmp_path: Path, target: str, itself: bool
) -> None:  # B1, C16
    model, other = tmp_path / "model", tmp_path / "other"
    config = write_tiny_llama(model) if target == "dense" else write_tiny_deepseek(model, "bfloat16", by_kernels=True)
    write_tiny_llama(other, seed=4, num_layers=1)
    how: dict[str, Any] = {"adapter": write_some(tmp_path, config), "kernels": "auto", "dtype": "bfloat16"}
    guess: dict[str, Any] = {"speculative_model": str(model if itself else other), "speculative_tokens": 4}
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", **how, **guess)
    decode = open_worker(model, tmp_path, "decode:0", "decode", **how, **guess)
    plain = open_worker(model, tmp_path, "mixed:0", "mixed", **how)
    draft_always(decode)
    proxy.admit(prefill, decode, plain)
    digests, engine = {"": ""} | plain.machine.adapters.by_name, decode.machine.engine
    for kind, params in KINDS.items():
        fields: dict[str, dict[str, Any]] = {
            name: {"adapter": digests[one], "adapter_start": start} for name, (one, start) in ASKED.items()
        }
        expected = {}
        for name, more in fields.items():
            proxy.submit(plain, f"{kind} {name} plain", PROMPT, params, **more)
            expected[name] = ended(proxy, f"{kind} {name} plain", params)
        assert len({str(ids) for ids, _ in expected.values()}) == len(ASKED)
        before = engine.drafted
        # All of them beside each other, each whole and over a pair.
        for name, more in fields.items():
            proxy.submit(decode, f"{kind} {name} whole", PROMPT, params, **more)
            half = {"request_id": f"{kind} {name} split", "attempt": 0, "prompt": PROMPT, "cache_salt": name}
            half |= {"sampling": params.to_wire()} | more
            proxy.submit_halves(prefill, decode, half, half)
        for name in ASKED:
            for way in ("whole", "split"):
                assert ended(proxy, f"{kind} {name} {way}", params) == expected[name], (kind, name, way)
        assert engine.drafted > before and engine.accepted <= engine.drafted
    everyone_clean(proxy)
