# SPDX-License-Identifier: Apache-2.0
"""Runs through three stages: every fault at every moment, and always the same text and the same audio, once."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from effort import by_default
from heard_runs import PARAMS, PROMPT, SERVING, SPLIT, TOGETHER, Heard, expected, nothing_is_left, site_of, submit
from hypothesis import example, given, settings
from hypothesis import strategies as st
from stage_model import RATE
from stage_site import StageSite

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.requests.answer import Finished
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.stages.runs.run import StageRun
from pontil.runtime.stages.runs.stream import RunStream
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, NodeOutput, NodeTask, Submit, Tokens


def is_whole(site: StageSite, heard: Heard) -> None:
    ids, audio, usage = expected(site.count)
    assert heard.stream.error is None and heard.stream.is_over
    assert (heard.ids, heard.audio, heard.complete) == (ids, audio, True)
    assert heard.stream.usage == heard.stream.final_usage == usage
    end = heard.stream.end
    assert isinstance(end, Finished) and (end.reason, end.usage) == ("stop", usage)
    nothing_is_left(site)


@pytest.mark.parametrize("count", [0, 1, 2, 9])
@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_a_run_gives_text_and_audio(tokenizer: Tokenizer, workers: tuple[str, ...], count: int) -> None:
    site = site_of(tokenizer, *workers, count=count)
    heard = submit(site)
    site.run_until_idle()
    is_whole(site, heard)
    assert site.released == {(name, heard.stream.run.id) for name in SERVING[workers]}


def length_of(tokenizer: Tokenizer, workers: tuple[str, ...]) -> int:
    site = site_of(tokenizer, *workers)
    submit(site)
    site.run_until_idle()
    return site.steps


@pytest.mark.parametrize(("lag", "notice"), by_default({(3, 12)}, [(0, 0), (0, 12), (3, 0), (3, 12)]))
@pytest.mark.parametrize(
    ("workers", "name"), [(workers, name) for workers, serving in SERVING.items() for name in serving]
)
def test_any_worker_may_be_lost_at_any_moment(
    tokenizer: Tokenizer, workers: tuple[str, ...], name: str, notice: int, lag: int
) -> None:  # E15
    for moment in range(length_of(tokenizer, workers) + lag + 1):
        site = site_of(tokenizer, *workers, lag=lag)
        heard = submit(site)
        for _ in range(moment):
            site.step()
        site.kill(name, notice)
        site.run_until_idle()
        is_whole(site, heard)


@given(
    losses=st.lists(
        st.tuples(st.integers(0, 60), st.integers(0, 4), st.sampled_from([0, 2, 12]), st.integers(0, 9)), max_size=5
    ),
    lag=st.integers(0, 4),
    count=st.integers(0, 8),
    workers=st.sampled_from([TOGETHER, SPLIT]),
    leaves=st.one_of(st.none(), st.integers(0, 60)),
)
@example(losses=[(0, 4, 12, 0), (6, 3, 0, 0)], lag=0, count=0, workers=SPLIT, leaves=None)
@settings(deadline=None)
def test_any_workers_may_be_lost_one_after_another(
    tokenizer: Tokenizer, losses: list[tuple[int, int, int, int]], lag: int, count: int, workers: tuple[str, ...],
    leaves: int | None,
) -> None:  # fmt: skip
    """Each loss is a moment, the place of a stage's worker, when the proxy notices, and when another one comes."""
    site = StageSite(tokenizer, count=count, lag=lag, max_attempts=20)
    kinds = [name.removesuffix(":0") for name in SERVING[workers]]
    site.join(*(f"{kind}:0" for kind in kinds))
    heard = submit(site)
    coming: list[tuple[int, str]] = []
    for moment, place, notice, comes in sorted(losses):
        while site.steps < moment:
            site.step()
            for due, name in [one for one in coming if one[0] <= site.steps]:
                coming.remove((due, name))
                site.join(name)
        kind = kinds[place % len(kinds)]
        alive = [name for name in site.workers if name.startswith(f"{kind}:")]
        if alive:
            site.kill(alive[-1], notice)
            coming.append((site.steps + comes, f"{kind}:{len(coming) + len(site.missed) + site.steps + 1}"))
        if leaves is not None and site.steps >= leaves:
            heard.stream.cancel()
    for _, name in coming:
        site.join(name)
    site.run_until_idle()
    if isinstance(heard.stream.end, Finished):
        is_whole(site, heard)
    else:
        assert leaves is not None
        site.run_until_idle()
        nothing_is_left(site)


@pytest.mark.parametrize("notice", [0, 12])
@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_items_that_are_lost_after_their_request_ended_are_made_again(
    tokenizer: Tokenizer, workers: tuple[str, ...], notice: int
) -> None:  # E6
    """Every worker of two stages is lost once the second has ended: both are computed again, billed to nobody."""
    site = site_of(tokenizer, *workers, count=9)
    site.workers["wav:0"].silent = True
    heard = submit(site)
    requests = heard.stream.run.requests
    while not requests["talker"].complete:
        site.step()
    assert requests["thinker"].complete and not requests["wav"].complete
    for name in SERVING[workers]:
        site.kill(name, notice)
    site.run_until_idle()
    is_whole(site, heard)
    value = site.metrics.registry.get_sample_value
    assert value("pontil_stage_replays_total") == 2 and (value("pontil_stages_starved_total") or 0) >= 2
    assert value("pontil_audio_seconds_total") == len(heard.audio) / 2 / RATE
    replays = heard.stream.run.replays
    assert all(
        one.trial and one.attempts.route is not None and len(one.attempts.route.workers) == 1
        for one in replays.values()
    )
    assert (
        site.ledger.totals.requests == 3
        and site.ledger.totals.completion_tokens == heard.stream.usage.completion_tokens
    )


def test_one_stage_that_is_always_lost_fails_the_run(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer, "thinker:0", "talker:0", "wav:0", "wav:1")
    site.workers["wav:0"].silent = site.workers["wav:1"].silent = True
    heard = submit(site)
    while not heard.stream.run.requests["talker"].complete:
        site.step()
    site.workers["talker:0"].forgets = True
    site.workers["wav:0"].silent = False
    for _ in range(200):
        site.step()
    with pytest.raises(Unavailable, match="items of talker were lost with a worker: attempt 3 of 3"):
        asyncio.run(heard.stream.all())
    assert heard.ids == expected(site.count)[0] and not heard.complete
    nothing_is_left(site)


@pytest.mark.parametrize("workers", [TOGETHER, SPLIT])
def test_a_client_that_leaves_ends_every_stage(tokenizer: Tokenizer, workers: tuple[str, ...]) -> None:
    """E15: every worker is told to end and to let go of all items before it makes another one."""
    for moment in range(length_of(tokenizer, workers) + 1):
        site = site_of(tokenizer, *workers)
        heard = submit(site)
        for _ in range(moment):
            site.step()
        heard.stream.cancel()
        heard.stream.cancel()
        assert site.idle and not any(worker.kept for worker in site.workers.values())
        for _ in range(3):
            site.step()
        nothing_is_left(site)


@pytest.mark.parametrize("name", ["thinker:0", "talker:0", "wav:0"])
def test_a_stage_that_never_answers_is_one_error(tokenizer: Tokenizer, name: str) -> None:  # C14
    site = site_of(tokenizer, "thinker:0", "talker:0", "wav:0", first_byte_timeout=5.0, stream_idle_timeout=5.0)
    site.workers[name].silent = True
    heard = submit(site)
    while not site.idle:
        assert site.steps < 5000
        site.step()
    stage = name.split(":")[0]
    with pytest.raises(Unavailable, match=f"the first (token|output) of {stage} did not come within 5 s"):
        asyncio.run(heard.stream.all())
    if name != "thinker:0":
        assert heard.ids == expected(site.count)[0], "the text was complete before"
    nothing_is_left(site)


def test_nobody_is_billed_for_a_part_of_a_whole_answer(tokenizer: Tokenizer) -> None:
    """A text that is complete is not given to a reader who waits for its sound too."""
    site = site_of(tokenizer, "thinker:0", "talker:0", "wav:0", first_byte_timeout=5.0, stream_idle_timeout=5.0)
    site.workers["wav:0"].silent = True

    async def ask() -> RunStream:
        stream = runs_of(site).submit(Ticket(), PROMPT, PARAMS)
        whole = asyncio.create_task(stream.all())
        while not whole.done():
            site.step()
            await asyncio.sleep(0)
        with pytest.raises(Unavailable):
            await whole
        return stream

    requests = asyncio.run(ask()).run.requests
    assert requests["thinker"].complete and requests["talker"].complete
    billed = [request.entry.billed for request in requests.values()]
    assert [one and (one.completion_tokens, one.audio_tokens) for one in billed] == [(0, 0)] * 3
    nothing_is_left(site)


def test_a_stage_waits_as_long_as_another_advances(tokenizer: Tokenizer) -> None:
    """The sound of a long answer comes long after the first deadline: its stage had nothing to do before."""
    site = site_of(tokenizer, count=50, first_byte_timeout=0.5, stream_idle_timeout=0.5)
    site.workers["talker:0"].silent = True
    heard = submit(site)
    while len(heard.ids) < 40:
        site.step()
    assert site.now > 0.6
    site.workers["talker:0"].silent = False
    site.run_until_idle()
    is_whole(site, heard)


def test_a_stage_that_refuses_fails_the_run_with_its_reason(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)
    heard = submit(site)
    site.step()
    (task,) = site.workers["wav:0"].tasks
    site.post(Failed("wav:0", site.incarnation, task.request_id, 0, "no such voice", 400))
    site.run_until_idle()
    with pytest.raises(RequestError, match="no such voice"):
        asyncio.run(heard.stream.all())
    nothing_is_left(site)


def output(site: StageSite, task: NodeTask | Submit, **wrong: Any) -> NodeOutput:
    fields: dict[str, Any] = {"index": 0, "data": b"ab", "kind": "audio", "sample_rate": RATE}
    return NodeOutput(task.receiver, site.incarnation, task.request_id, task.attempt, **(fields | wrong))


@pytest.mark.parametrize(
    "wrong",
    [
        {"index": 1}, {"index": -1}, {"data": b"odd"}, {"sample_rate": 44100}, {"kind": "text"},
        {"data": bytes(80_000_000)},
    ],
)  # fmt: skip
def test_an_output_that_cannot_be_breaks_the_attempt(tokenizer: Tokenizer, wrong: dict[str, Any]) -> None:
    site = site_of(tokenizer)
    site.workers["wav:0"].silent = True
    heard = submit(site)
    (task,) = site.workers["wav:0"].tasks
    site.post(output(site, task, **wrong))
    site.run_until_idle()
    assert heard.stream.run.requests["wav"].attempts.number == 1
    assert site.metrics.registry.get_sample_value("pontil_failovers_total", {"cause": "broken"}) == 1
    is_whole(site, heard)


def test_an_output_of_an_old_attempt_is_not_heard(tokenizer: Tokenizer) -> None:
    """An output may come twice, and after its worker was given up: each is heard once."""
    site = site_of(tokenizer)
    heard = submit(site)
    (task,) = site.workers["wav:0"].tasks
    while not heard.audio:
        site.step()
    site.post(output(site, task, data=heard.audio))
    site.step()
    site.kill("wav:0")
    site.step()
    (again,) = site.workers["wav:1"].tasks
    assert isinstance(again, NodeTask) and (again.attempt, again.delivered) == (1, 1)
    late = output(site, task, index=1, data=b"late", final=True)
    site.post(late)
    site.post(replace(late, index=7))
    site.run_until_idle()
    is_whole(site, heard)
    assert (site.metrics.registry.get_sample_value("pontil_frames_dropped_total", {"reason": "stale"}) or 0) >= 2


@pytest.mark.parametrize("codes", [None, [], [[9]], [[9, -1]], [[9, 1 << 40]], [[8, 2]], [[9, 2], [9, 4]]])
def test_frames_that_are_not_of_their_ids_are_dropped(tokenizer: Tokenizer, codes: list[list[int]] | None) -> None:
    site = site_of(tokenizer, *TOGETHER)
    heard = submit(site)
    (task,) = site.workers["talker:0"].tasks
    site.post(Tokens("talker:0", site.incarnation, task.request_id, 0, 0, [9], frames=codes))
    site.deliver()
    assert not heard.stream.run.requests["talker"].answers[0].ids
    assert site.metrics.registry.get_sample_value("pontil_frames_dropped_total", {"reason": "malformed"}) == 1
    heard.stream.cancel()


def test_an_attempt_makes_no_items_for_a_stage_that_has_ended(tokenizer: Tokenizer) -> None:
    """E13: its speech is over before the text, and nobody would make room for more states."""
    site = site_of(tokenizer)
    heard = submit(site)
    run = heard.stream.run
    work = run.first.work
    assert isinstance(work, StageRun)
    assert run.part(work, "thinker:1", "whole").outputs == ("thinker/talker/states",)
    run.requests["talker"].mailbox.close(Finished("stop", Usage(0, 0, 0), ""))
    assert not run.part(work, "thinker:1", "whole").outputs
    # Where the speech is made again, the text has to make its states once more.
    runs_of(site).conductor.replay(run, "talker")
    assert run.first.attempts.number == 1 and run.part(work, "thinker:1", "whole").outputs
    heard.stream.cancel()


def test_parts_name_walks_producers_and_one_secret(tokenizer: Tokenizer) -> None:  # E4
    site = site_of(tokenizer, *SPLIT[:5])
    submit(site, options={"voice": "ada"})
    parts = {}
    for name, worker in site.workers.items():
        (task,) = worker.tasks
        assert task.graph is not None and (task.deadline is None) == ("thinker" not in name)
        parts[name] = task.graph
    assert len({part["secret"] for part in parts.values()}) == len({part["run"] for part in parts.values()}) == 1
    assert parts["thinker.prefill:0"]["walks"] == ["prefill_text"] and parts["wav:0"]["walks"] == []
    assert parts["talker.prefill:0"]["walks"] == ["talker_prefill", "talker_last_prefill"]
    assert parts["talker.decode:0"]["walks"] == ["talker_decode"]
    assert parts["thinker.decode:0"]["inputs"] == {} and parts["wav:0"]["outputs"] == []
    names = [["thinker.prefill:0", "ipc://thinker.prefill:0"], ["thinker.decode:0", "ipc://thinker.decode:0"]]
    assert sorted(parts["talker.decode:0"]["inputs"]["thinker/talker/states"]) == sorted(names)
    assert parts["talker.prefill:0"]["outputs"] == ["talker/wav/codes"]
    assert all(part["options"] == {"voice": "ada"} for part in parts.values())
    submits = [task for worker in site.workers.values() for task in worker.tasks if isinstance(task, Submit)]
    assert {tuple(one.prompt) for one in submits} == {tuple(PROMPT)}
