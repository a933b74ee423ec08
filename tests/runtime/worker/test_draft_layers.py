# SPDX-License-Identifier: Apache-2.0
"""Workers with a draft layer: the same answers by one worker and by two, and what a handoff carries for it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from always_draft import AlwaysDraft
from effort import by_default, examples
from tiny_draft_layers import write_eagle_head, write_mtp_hybrid, write_mtp_model
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, everyone_clean, greedy, open_worker

from pontil.runtime.disaggregation.sender import KVSender, PrefillResult
from pontil.runtime.engine.drafts.head import DraftHead
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.errors import DraftModelError
from pontil.runtime.grammar.grammar_text import grammar_of_choices
from pontil.runtime.loaders.draft_layers import find_draft_layer
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.generate.hidden_row import digest_of, handed_state

# No token stands twice, and answers have none of these: nothing repeats at first.
PROMPT = [20 + at for at in range(42)]
FRESH = tuple(range(100, 108))
COUNT = 3
HYBRID = "mtp of a hybrid model"
# The answers cross the end of a block.
LENGTH = examples(18, 30)
KINDS: dict[str, SamplingParams] = {
    "greedy": greedy(LENGTH, ignore_eos=True, logprobs=2),
    "seeded": drawn(LENGTH, top_p=0.9, seed=5),
    "choices": drawn(8, n=3, logprobs=0, allowed_token_ids=FRESH),
    "penalized": greedy(10, ignore_eos=True, repetition_penalty=1.3),
    "stop": greedy(24, min_tokens=8, stop=("e", "t")),
    "guided": drawn(30, grammar=grammar_of_choices(["the whole of it", "a part of that", "nothing"])),
}


def head_of(worker: PromptWorker) -> DraftHead:
    drafter = worker.machine.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter) and isinstance(drafter.model, DraftHead)
    return drafter.model


@pytest.fixture(scope="module", params=["mtp", "mtp of kernels", HYBRID, "eagle"])
def named(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, model: Path) -> tuple[Path, str]:
    """Return a model, and what is named to guess for it."""
    folder = tmp_path_factory.mktemp("named")
    if request.param == HYBRID:
        write_mtp_hybrid(folder)
        return folder, "mtp"
    if request.param != "eagle":
        write_mtp_model(folder, by_kernels=request.param != "mtp")
        return folder, "mtp"
    write_eagle_head(folder, model)
    return model, str(folder)


# With torch's operations a layer is seen by itself in runtime/engine/drafts/test_head.py.
OF_KERNELS = by_default({"mtp of kernels", HYBRID}, ["mtp", "mtp of kernels", HYBRID, "eagle"])


@pytest.fixture
def guessing(proxy: ScriptedProxy, named: tuple[Path, str], tmp_path: Path) -> Iterator[list[PromptWorker]]:
    """Open a pair with a draft layer, and a worker without one."""
    path, name = named
    how: dict[str, Any] = {"speculative_model": name, "speculative_tokens": COUNT, "kernels": "auto"}
    made = [
        open_worker(path, tmp_path, "prefill:0", "prefill", **how),
        open_worker(path, tmp_path, "decode:0", "decode", **how),
        open_worker(path, tmp_path, "mixed:0", "mixed", kernels="auto"),
    ]
    drafter = made[1].machine.scheduler.drafts.drafter
    assert isinstance(drafter, ModelDrafter)
    drafter.policy = AlwaysDraft(with_lookup=True)
    proxy.admit(*made)
    yield made
    everyone_clean(proxy)
    for head in map(head_of, made[:2]):
        head.pool.check()
        assert not head.followers and not head.feeds and head.pool.available == head.pool.capacity


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
    before, names = engine.drafted, [f"{kind}, {way}" for way in ("plain", "whole", "split")]
    proxy.submit(plain, names[0], PROMPT, params)
    proxy.submit(decode, names[1], PROMPT, params)
    proxy.submit_pair(prefill, decode, names[2], PROMPT, params)
    proxy.turn_until(lambda: all(name in answers and answers[name].ended(params.n) for name in names))
    plainly, wholly, split = (told(answers[name], params.n) for name in names)
    assert plainly == wholly == split and plainly["count"] == sum(map(len, plainly["ids"])), kind
    assert (engine.drafted > before) == (kind != "penalized") and prefill.machine.engine.drafted == 0, kind
    # Of a prompt in the prefix cache the states are not known: the layer begins behind it.
    again = f"{kind}, again"
    proxy.submit(decode, again, PROMPT, params, salt=names[1])
    proxy.turn_until(lambda: again in answers and answers[again].ended(params.n))
    assert told(answers[again], params.n)["ids"] == plainly["ids"], kind


@pytest.mark.parametrize(
    "named",
    by_default({"mtp of kernels", HYBRID, "eagle"}, ["mtp", "mtp of kernels", HYBRID, "eagle"]),
    indirect=True,
)
def test_with_a_draft_layer_all_is_as_without(proxy: ScriptedProxy, guessing: list[PromptWorker]) -> None:  # B1, C16
    """Each kind of request, one after the other by the same workers."""
    for kind in KINDS:
        check_kind(proxy, guessing, kind)


Change = Callable[[PrefillResult], PrefillResult]
CHANGES: dict[str, Change] = {
    "both": lambda done: done,
    "only the state": lambda done: replace(done, drafts=None),
    "neither": lambda done: replace(done, drafts=None, hidden_state=None, hidden_digest=None),
    "damaged": lambda done: replace(done, drafts=None, hidden_state=bytes(len(done.hidden_state or b""))),
}


@pytest.mark.parametrize("named", OF_KERNELS, indirect=True)
@pytest.mark.parametrize("handed", CHANGES)
def test_what_prefill_guessed_decode_could_not(
    proxy: ScriptedProxy, guessing: list[PromptWorker], handed: str, monkeypatch: pytest.MonkeyPatch
) -> None:  # B7, B8
    """Decode's first step verifies what was handed over, or guesses from the state that came; without both it has
    nothing to guess from, and goes on from its own first state."""
    prefill, decode, plain = guessing
    held: list[PrefillResult] = []
    hold = KVSender.hold

    def changed(self: KVSender, sent: Any, blocks: list[int], done: PrefillResult, now: float) -> None:
        held.append(done)
        hold(self, sent, blocks, CHANGES[handed](done), now)

    monkeypatch.setattr(KVSender, "hold", changed)
    params = greedy(20, ignore_eos=True, allowed_token_ids=FRESH)
    proxy.submit(plain, "plain", PROMPT, params)
    proxy.submit_pair(prefill, decode, "split", PROMPT, params)
    plainly, split = proxy.finish("plain", "split")
    assert split.ids == plainly.ids
    (done,) = held
    assert done.drafts is not None and len(done.drafts[0]) == COUNT and set(done.drafts[0]) <= set(FRESH)
    assert done.hidden_state is not None and done.hidden_digest == digest_of(done.hidden_state)
    steps = [frame for frame in split.frames if frame.sender == decode.incarnation]
    assert [frame.draft_tokens for frame in steps[:2]] == [
        COUNT if handed in ("both", "only the state") else None,
        COUNT,
    ]
    # Each step gives one token, and those that were guessed right: their number follows from the cumulative count.
    made = sum(frame.generated_tokens or 0 for frame in steps)
    right = sum(frame.accepted_draft_tokens or 0 for frame in steps)
    assert right == made - len(steps) == decode.machine.engine.accepted > 0
    if handed == "both":
        right = steps[0].accepted_draft_tokens or 0
        assert done.drafts[0][:right] == plainly.ids[1 : 1 + right]
        assert right == COUNT or done.drafts[0][right] != plainly.ids[1 + right]


def test_only_a_whole_and_finite_state_is_taken(recorded_handoff: Any) -> None:
    row = torch.tensor([1.0, -2.0]).numpy().tobytes()
    good = replace(recorded_handoff, hidden_state=row, hidden_digest=digest_of(row))
    taken = handed_state(good, 2, torch.device("cpu"))
    assert taken is not None and taken.tolist() == [1.0, -2.0]
    bad = torch.tensor([1.0, float("nan")]).numpy().tobytes()
    for each in (
        replace(good, hidden_digest=None),
        replace(good, hidden_state=row[:4], hidden_digest=digest_of(row[:4])),
        replace(good, hidden_state=row[::-1]),
        replace(good, hidden_state=bad, hidden_digest=digest_of(bad)),
        replace(good, hidden_state=None),
    ):
        assert handed_state(each, 2, torch.device("cpu")) is None


@pytest.fixture
def recorded_handoff() -> Any:
    from recorded_frames import MESSAGES

    return MESSAGES["handoff"]


def test_mtp_of_a_model_without_it_is_refused(model: Path) -> None:
    with pytest.raises(DraftModelError, match="needs a checkpoint with an MTP layer, and .* has none: name a smaller"):
        find_draft_layer(model, "mtp")


@pytest.mark.long
def test_a_prompt_that_was_kept_is_gone_on_with_alike(proxy: ScriptedProxy, guessing: list[PromptWorker]) -> None:
    """The worker that claims a prompt computes its last position, and with it the state that a draft layer reads."""
    prefill, decode, plain = guessing
    for name, params in KINDS.items():
        kept: dict[str, Any] = {"phase": "hold", "transfer_id": f"t-{name}"}
        proxy.submit(prefill, f"first-{name}", PROMPT, greedy(1), **kept)
        proxy.finish(f"first-{name}")
        place = {"peer": prefill.incarnation, "peer_endpoint": prefill.peers_in.endpoint}
        proxy.submit(decode, name, PROMPT, params, **(kept | place | {"phase": "claim"}))
        proxy.submit(plain, f"plain-{name}", PROMPT, params)
        both = (name, f"plain-{name}")
        proxy.turn_until(lambda both=both, n=params.n: all(  # type: ignore[misc]
            one in proxy.answers and proxy.answers[one].ended(n) for one in both))  # fmt: skip
        for choice in range(params.n):
            assert proxy.answers[name].choice(choice) == proxy.answers[f"plain-{name}"].choice(choice), name
    everyone_clean(proxy)
    assert decode.decode.counts.complete == len(KINDS)
