# SPDX-License-Identifier: Apache-2.0
"""A worker of a stage that generates: its part of a run, the items that it keeps, and parts that cannot be its own."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from workers import ScriptedProxy, open_worker

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.part import GraphPart
from pontil.runtime.stages.worker.stage_side import StageSide
from pontil.runtime.stages.worker.stream_ports import StreamPorts
from pontil.runtime.wire.messages import Cancel, PassDone, Release, Submit

EDGE = "llm/speaker/text"
PROMPT = [20 + 7 * number for number in range(20)]
GREEDY = SamplingParams(max_tokens=8, seed=1, temperature=0.0, ignore_eos=True)


class StagedWorker:
    """The worker of the first stage of a speech pipeline, and its proxy."""

    def __init__(self, proxy: ScriptedProxy, model: Path, folder: Path) -> None:
        self.proxy = proxy
        self.worker = open_worker(model, folder, "mixed:0", "mixed", graph="speech-demo", node="llm")
        proxy.admit(self.worker)

    def ask(self, run: str, part: dict[str, Any] | None, params: SamplingParams = GREEDY) -> Any:
        """Submit a request; return what was answered, once it has ended."""
        message = Submit(self.proxy.incarnation, self.worker.incarnation, run, 0, PROMPT, params.to_wire(), graph=part)
        assert self.proxy.server.send(message)
        self.proxy.turn_until(lambda: run in self.proxy.answers and self.proxy.answers[run].ended(params.n))
        return self.proxy.answers[run]

    @property
    def ports(self) -> StreamPorts:
        assert isinstance(self.worker.stage, StageSide)
        return self.worker.stage.ports

    def text(self, run: str) -> str:
        """Return the text of the items that are kept for a run."""
        kept = self.ports.sender.streams[run, EDGE].kept
        return b"".join(kept[index].data for index in sorted(kept)).decode()


@pytest.fixture
def staged(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> StagedWorker:
    return StagedWorker(proxy, model, tmp_path)


def part_of(name: str, **changes: Any) -> dict[str, Any]:
    return GraphPart(name, "llm", "secret", (EDGE,)).to_wire() | changes


def test_the_items_of_an_answer_are_its_text_and_are_kept_until_release(staged: StagedWorker) -> None:
    answer = staged.ask("r", part_of("r"))
    ids = [token for frame in answer.frames for token in frame.ids]
    whole = staged.worker.machine.tokenizer.decode(ids)
    assert staged.text("r") == whole and not staged.worker.is_idle
    assert staged.proxy.server.send(Release(staged.proxy.incarnation, staged.worker.incarnation, "r"))
    staged.proxy.turn_until(lambda: staged.worker.is_idle)


@pytest.mark.parametrize(("tokens", "walk"), [(1, "prefill_text"), (2, "decode_text"), (8, "decode_text")])
def test_a_report_names_the_walk_that_ran(
    staged: StagedWorker, monkeypatch: pytest.MonkeyPatch, tokens: int, walk: str
) -> None:  # E5
    stage, told = staged.worker.stage, list[PassDone]()
    assert isinstance(stage, StageSide)
    send = stage.link.send
    monkeypatch.setattr(stage.link, "send", lambda one: told.append(one) if isinstance(one, PassDone) else send(one))
    staged.ask("r", part_of("r"), replace(GREEDY, max_tokens=tokens))
    assert [(one.walk, one.produced, one.done) for one in told] == [(walk, {EDGE: tokens}, True)]
    assert told[0].token_counts == {EDGE: len(staged.text("r").encode())}


def test_a_stage_is_done_when_its_last_choice_has_ended(staged: StagedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """E5: with no items of its own it may have several, which end one after the other."""
    stage, told = staged.worker.stage, list[PassDone]()
    assert isinstance(stage, StageSide)
    params = replace(GREEDY, n=2, temperature=1.0)
    answer = staged.ask("whole", part_of("whole", outputs=[]), params)
    first, second = answer.choice(0), answer.choice(1)
    stop = next(token for token in first if token not in second)
    send = stage.link.send

    def heard(message: Any) -> None:
        if isinstance(message, PassDone):
            assert not staged.worker.machine.engine.sequences
            told.append(message)
        send(message)

    monkeypatch.setattr(stage.link, "send", heard)
    again = staged.ask("r", part_of("r", outputs=[]), replace(params, stop_token_ids=(stop,)))
    assert again.choice(0) == first[: first.index(stop) + 1] and again.choice(1) == second
    assert [(one.walk, one.done) for one in told] == [("decode_text", True)]


def test_items_are_those_of_one_choice(staged: StagedWorker) -> None:
    answer = staged.ask("bad", part_of("bad"), replace(GREEDY, n=2))
    assert [failure.status for failure in answer.failures] == [400] and "one choice" in answer.failures[0].reason
    assert staged.worker.is_idle


def test_nothing_is_made_after_a_cancel(staged: StagedWorker) -> None:
    """E15: a client that leaves costs at most the step that is being computed."""
    worker, proxy = staged.worker, staged.proxy
    params = replace(GREEDY, max_tokens=200)
    address = proxy.incarnation, worker.incarnation, "r", 0
    assert proxy.server.send(Submit(*address, PROMPT, params.to_wire(), graph=part_of("r")))
    proxy.turn_until(lambda: "r" in proxy.answers and bool(proxy.answers["r"].frames))
    worker.hear(Cancel(*address), worker.now, worker.link.links[0])
    worker.hear(Release(proxy.incarnation, worker.incarnation, "r"), worker.now)
    made = worker.machine.engine.generated
    proxy.turn_until(lambda: worker.is_idle)
    assert worker.machine.engine.generated == made < params.max_tokens
    assert worker.stage.gauges() == {
        "stream_free_blocks": staged.ports.memory.capacity, "stream_kept_bytes": 0,
        "stream_items_ahead": 0, "streams_full": 0,
    }  # fmt: skip


def test_nothing_of_a_proxy_that_is_gone_stays_open(staged: StagedWorker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Inputs that nobody closes would be asked for again and again, and the worker would never be idle."""
    worker, proxy = staged.worker, staged.proxy
    stage: Any = worker.stage
    closed = list[tuple[str, int]]()
    close = stage.ports.close

    def noted(request_id: str, attempt: int, finished: bool, now: float) -> None:
        closed.append((request_id, attempt))
        close(request_id, attempt, finished, now)

    monkeypatch.setattr(stage.ports, "close", noted)
    params = replace(GREEDY, max_tokens=200)
    message = Submit(proxy.incarnation, worker.incarnation, "r", 0, PROMPT, params.to_wire(), graph=part_of("r"))
    assert proxy.server.send(message)
    proxy.turn_until(lambda: "r" in proxy.answers and bool(proxy.answers["r"].frames))
    worker.lose(proxy.incarnation)
    assert closed == [("r", 0)] and stage.ports.is_idle and not stage.open


def test_an_answer_is_streamed_again_without_being_computed(staged: StagedWorker) -> None:
    """E15: the items of a worker that died after its answer."""
    answer = staged.ask("r", part_of("r"))
    ids = [token for frame in answer.frames for token in frame.ids]
    said = staged.text("r")
    before = staged.worker.machine.engine.prompt_computed, staged.worker.machine.engine.generated
    nothing = SamplingParams(max_tokens=0, seed=1, temperature=0.0)
    again = staged.ask("again", part_of("again", answer=ids, positions=len(PROMPT)), nothing)
    assert [frame.ids for frame in again.frames] == [[]] and staged.text("again") == said
    assert (staged.worker.machine.engine.prompt_computed, staged.worker.machine.engine.generated) == before


def test_a_prefix_is_found_by_the_next_run(staged: StagedWorker) -> None:
    """Text needs no states, so its runs share what is cached."""
    staged.ask("first", part_of("first"))
    assert staged.ask("second", part_of("second")).frames[0].cached_tokens > 0


@pytest.mark.parametrize(
    "wrong",
    [
        {"run": None, "outputs": 3},
        {"outputs": ["llm/speaker/smoke"]},
        {"inputs": {EDGE: [["w", "ipc://nowhere"]]}},
        {"inputs": {EDGE: ["w"]}},
        {"answer": 7},
        {"answer": ["x"]},
        {"answer": [-1]},
        {"answer": [1 << 60]},
        {"answer": [5], "outputs": []},
        {"positions": "x"},
        {"positions": -1},
        {"positions": len(PROMPT) + 1},
        {"walks": None},
    ],
    ids=str,
)  # fmt: skip
def test_a_part_that_is_not_its_own_is_refused_in_a_sentence(staged: StagedWorker, wrong: dict[str, Any]) -> None:
    answer = staged.ask("bad", part_of("bad", **wrong))
    assert [failure.status for failure in answer.failures] == [400] and answer.failures[0].reason
    assert staged.worker.is_idle
    assert staged.ask("good", part_of("good")).finished
