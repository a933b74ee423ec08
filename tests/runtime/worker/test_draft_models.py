# SPDX-License-Identifier: Apache-2.0
"""Workers with a draft model: the same answers by one worker and by two, and the memory that both models share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from always_draft import AlwaysDraft
from effort import by_default
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, everyone_clean, greedy, open_worker

from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import AdaptivePolicy
from pontil.runtime.errors import DraftModelError, ModelError
from pontil.runtime.grammar.grammar_text import grammar_of_choices
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.start.draft_pair import check_pair

PROMPT = [20 + at * 13 % 90 for at in range(42)]
KINDS: dict[str, SamplingParams] = {
    "greedy": greedy(40, ignore_eos=True, logprobs=2),
    "seeded": drawn(40, top_p=0.9, seed=5),
    "choices": drawn(30, n=3, logprobs=0),
    "penalized": greedy(30, ignore_eos=True, repetition_penalty=1.3),
    "stop": greedy(60, min_tokens=20, stop=("e", "t")),
    "guided": drawn(30, grammar=grammar_of_choices(["the whole of it", "a part of that", "nothing"])),
}


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("other")
    write_tiny_llama(folder, seed=4, num_layers=1)
    return folder


def drafter_of(worker: PromptWorker) -> ModelDrafter:
    drafter = worker.machine.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter)
    return drafter


BOTH = ("the model itself", "another model")
# Guesses that are right and wrong show the same here.
of_any_guesses = pytest.mark.parametrize("guessing", by_default({"another model"}, BOTH), indirect=True)


@pytest.fixture(params=BOTH)
def guessing(
    request: pytest.FixtureRequest, proxy: ScriptedProxy, model: Path, other: Path, tmp_path: Path
) -> Iterator[list[PromptWorker]]:
    """Open a pair with a draft model, and a worker without one."""
    draft = str(model if request.param == "the model itself" else other)
    how: dict[str, Any] = {"speculative_model": draft, "speculative_tokens": 6}
    made = [
        open_worker(model, tmp_path, "prefill:0", "prefill", **how),
        open_worker(model, tmp_path, "decode:0", "decode", **how),
        open_worker(model, tmp_path, "mixed:0", "mixed"),
    ]
    drafter_of(made[1]).policy = AlwaysDraft()
    proxy.admit(*made)
    yield made
    everyone_clean(proxy)
    draft_model = drafter_of(made[1]).model
    draft_model.pool.check()
    assert not draft_model.followers and draft_model.pool.available == draft_model.pool.capacity


def told(answer: WorkerAnswer, n: int) -> dict[str, Any]:
    """Return the contents of the frames, however they are cut."""
    logprobs = {
        (frame.choice, index): entries
        for frame in answer.frames
        for index, entries in enumerate(frame.logprobs or (), frame.index)
    }
    ends = sorted((frame.choice, frame.finish_reason) for frame in answer.frames if frame.finish_reason)
    count = sum(frame.generated_tokens or 0 for frame in answer.frames)
    return {"ids": [answer.choice(number) for number in range(n)], "logprobs": logprobs, "ends": ends, "count": count}


def check_kind(proxy: ScriptedProxy, guessing: list[PromptWorker], kind: str) -> None:
    prefill, decode, plain = guessing
    params, engine, answers = KINDS[kind], decode.machine.engine, proxy.answers
    before, names = (engine.drafted, engine.accepted), [f"{kind}, {way}" for way in ("plain", "whole", "split")]
    proxy.submit(plain, names[0], PROMPT, params)
    proxy.submit(decode, names[1], PROMPT, params)
    proxy.submit_pair(prefill, decode, names[2], PROMPT, params)
    proxy.turn_until(lambda: all(name in answers and answers[name].ended(params.n) for name in names))
    plainly, wholly, split = (told(answers[name], params.n) for name in names)
    assert plainly == wholly == split and plainly["count"] == sum(map(len, plainly["ids"])), kind
    drafted, accepted = engine.drafted - before[0], engine.accepted - before[1]
    assert (drafted > 0) == (kind != "penalized"), kind
    if drafter_of(decode).model.shape.num_layers == 2 and kind not in ("guided", "stop"):
        assert accepted == drafted, kind


def test_with_a_draft_model_all_is_as_without(proxy: ScriptedProxy, guessing: list[PromptWorker]) -> None:  # B1, C16
    """Each kind of request, one after the other by the same workers."""
    for kind in KINDS:
        check_kind(proxy, guessing, kind)
    decode = guessing[1]
    engine, counters = decode.machine.engine, decode.load().counters
    assert counters["drafts"] == engine.drafts.drafts and counters["accepted_draft_tokens"] == engine.accepted
    assert sum(counters.get(f"accepted_draft_tokens_at_{at}", 0) for at in range(6)) == engine.accepted


@of_any_guesses
def test_a_request_goes_on_here_after_another_workers_death(proxy: ScriptedProxy, guessing: list[PromptWorker]) -> None:
    """The next attempt has the prompt and what was delivered; guesses begin where these end."""
    _, decode, plain = guessing
    params = drawn(40, seed=9)
    proxy.submit(plain, "plain", PROMPT, params)
    (whole,) = proxy.finish("plain")
    proxy.submit(decode, "again", PROMPT, params, attempt=1, delivered=[whole.ids[:17]])
    proxy.turn_until(lambda: "again" in proxy.answers and proxy.answers["again"].finished)
    got = {at: token for frame in proxy.answers["again"].frames for at, token in enumerate(frame.ids, frame.index)}
    assert got == dict(list(enumerate(whole.ids))[17:])
    assert decode.machine.engine.drafted > 0


@of_any_guesses
def test_prefill_workers_have_no_draft_model(guessing: list[PromptWorker]) -> None:
    prefill, decode, plain = guessing
    for worker in (prefill, plain):
        assert not isinstance(worker.machine.scheduler.drafts.drafter, ModelDrafter)
    assert prefill.machine.pool.capacity == plain.machine.pool.capacity > decode.machine.pool.capacity


@of_any_guesses
def test_both_models_share_the_kv_memory(guessing: list[PromptWorker]) -> None:
    """The pools hold equally many tokens, together no more than was given."""
    _, decode, _ = guessing
    draft, machine = drafter_of(decode).model, decode.machine
    assert draft.pool.num_blocks == machine.pool.num_blocks
    used = machine.pool.num_blocks * (machine.layout.block_bytes + draft.memory.layout.block_bytes)
    assert 0.99 * (8 << 20) < used <= 8 << 20


def test_a_worker_plans_by_what_it_measures(proxy: ScriptedProxy, model: Path, other: Path, tmp_path: Path) -> None:
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", speculative_model=str(other), speculative_tokens=6)
    proxy.admit(worker)
    proxy.submit(worker, "a", PROMPT, greedy(40, ignore_eos=True))
    proxy.finish("a")
    policy = drafter_of(worker).policy
    assert isinstance(policy, AdaptivePolicy) and policy.target.is_known and 0 < policy.ratio < 1


def test_too_little_memory_for_both_is_said(model: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"speculative_model": str(model), "speculative_tokens": 6, "kv_cache_memory": 16 << 10}
    with pytest.raises(ModelError, match="too few for one sequence: raise --kv-cache-memory"):
        open_worker(model, tmp_path, "mixed:0", "mixed", **how)


def test_a_pair_of_models_is_checked_by_its_files(model: Path, other: Path, tmp_path: Path) -> None:
    check_pair(model, model)
    check_pair(model, other)
    with pytest.raises(
        DraftModelError, match=r"is larger \(.*\) than the model it should guess for .*: give a smaller"
    ):
        check_pair(other, model)
    padded, foreign = tmp_path / "padded", tmp_path / "foreign"
    write_tiny_llama(padded, num_layers=1, vocab_size=320)
    check_pair(model, padded)
    write_tiny_llama(foreign, num_layers=1)
    text = (foreign / "tokenizer.json").read_text()
    (foreign / "tokenizer.json").write_text(text.replace('"!":', '"!!":'))
    with pytest.raises(DraftModelError, match="another tokenizer"):
        check_pair(model, foreign)
    with pytest.raises(DraftModelError, match="--speculative-model cannot be used"):
        check_pair(model, tmp_path / "none")


def test_a_draft_model_may_have_latent_attention(proxy: ScriptedProxy, tmp_path: Path) -> None:  # B1
    """Its blocks have one plane, and each guess of a model for itself is right."""
    write_tiny_deepseek(tmp_path / "latent")
    settings: dict[str, Any] = {"dtype": "float32", "kernels": "auto"}
    drafting = settings | {"speculative_model": str(tmp_path / "latent"), "speculative_tokens": 4}
    worker = open_worker(tmp_path / "latent", tmp_path, "mixed:0", "mixed", **drafting)
    drafter = drafter_of(worker)
    drafter.policy = AlwaysDraft()
    plain = open_worker(tmp_path / "latent", tmp_path, "mixed:1", "mixed", **settings)
    proxy.admit(worker, plain)
    proxy.submit(worker, "drafted", PROMPT, greedy(20, ignore_eos=True))
    proxy.submit(plain, "plain", PROMPT, greedy(20, ignore_eos=True))
    drafted, alone = proxy.finish("drafted", "plain")
    assert drafted.ids == alone.ids and len(alone.ids) == 20
    assert drafter.model.memory.layout.planes == 1
    counts = worker.machine.engine.drafts
    assert counts.guessed >= 12 and counts.right == counts.guessed
    everyone_clean(proxy)
