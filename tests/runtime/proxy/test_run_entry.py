# SPDX-License-Identifier: Apache-2.0
"""The entry of runs: what is admitted, billed and recorded, and the workers that may serve a stage."""

import asyncio
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from books import differing
from stage_model import GRAPH, RATE
from stage_site import StageSite
from submitting import submit

from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.accounting.usage_report import usage_sums
from pontil.runtime.errors import GraphError, RequestError, TooManyRequests, Unavailable
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.ticket import Allowance, Ticket
from pontil.runtime.proxy.stage_runs import graph_of
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import GraphModel
from pontil.runtime.stages.runs.audio_mailbox import AudioDelta, AudioEnded, AudioMailbox
from pontil.runtime.stages.runs.entry import runs_of
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, NodeTask, PassDone, Starved, Submit

ALL = ("thinker:0", "talker:0", "wav:0", "hears:0")
PROMPT = [5, 6, 7, 8]
PARAMS = SamplingParams(max_tokens=60, seed=1)


def site_of(tokenizer: Tokenizer, *workers: str, **options: Any) -> StageSite:
    site = StageSite(tokenizer, **options)
    site.join(*(workers or ALL))
    return site


async def asked(site: StageSite, data: bytes = b"hear me", beside: bool = False, **ticket: Any) -> str:
    """Ask the recognizer, and let the workers work meanwhile."""
    asking = asyncio.ensure_future(runs_of(site).ask(Ticket(**ticket), "hears", data, beside=beside))
    while not asking.done():
        await asyncio.sleep(0)
        assert site.steps < 500
        site.step()
    return await asking


def test_a_node_is_asked_for_the_text_of_bytes(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)
    assert asyncio.run(asked(site, "was für ein täg".encode())) == "WASFüREINTäG"
    (task,) = site.workers["hears:0"].tasks
    assert isinstance(task, NodeTask) and task.graph is None and task.deadline is not None
    assert site.idle and site.ledger.imbalance == 0 and site.ledger.totals.completion_tokens == 0
    assert site.metrics.registry.get_sample_value("pontil_request_success_total", {"finished_reason": "stop"}) == 0


def test_a_question_survives_its_worker(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer, *ALL, "hears:1")

    async def scene() -> str:
        asking = asyncio.ensure_future(runs_of(site).ask(Ticket(), "hears", b"one two three"))
        await asyncio.sleep(0)
        site.step()
        site.kill("hears:0")
        while not asking.done():
            site.step()
            await asyncio.sleep(0)
        return await asking

    assert asyncio.run(scene()) == "ONETWOTHREE"
    (task,) = site.workers["hears:1"].tasks
    assert isinstance(task, NodeTask) and (task.attempt, task.delivered) == (1, 1)


def test_a_question_that_is_given_up_leaves_nothing(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)

    async def scene() -> None:
        asking = asyncio.ensure_future(runs_of(site).ask(Ticket(), "hears", b"never mind"))
        await asyncio.sleep(0)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking

    asyncio.run(scene())
    assert site.idle and not site.workers["hears:0"].jobs


def test_the_reason_why_a_node_refuses_is_the_callers(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)

    async def scene() -> None:
        asking = asyncio.ensure_future(runs_of(site).ask(Ticket(), "hears", b"not a recording"))
        await asyncio.sleep(0)
        (task,) = site.workers["hears:0"].tasks
        site.post(Failed("hears:0", site.incarnation, task.request_id, 0, "this is no WAV file", 400))
        site.step()
        await asking

    with pytest.raises(RequestError, match="this is no WAV file"):
        asyncio.run(scene())


def test_audio_of_a_text_alone_is_for_models_that_can(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="makes no audio of a text alone"):
        runs_of(site_of(tokenizer)).speak(Ticket(), b"hello")
    site = site_of(tokenizer)
    runs_of(site).graph = replace(GRAPH, audio_needs_states=False)
    stream = runs_of(site).speak(Ticket(), b"hello", {"voice": "ada"})
    assert stream.request is stream.run.first and not stream.run.later
    assert stream.run.audio.has_room(2 * 65 * RATE) and not stream.run.audio.has_room(2 * 65 * RATE + 1)
    (task,) = site.workers["wav:0"].tasks
    assert isinstance(task, NodeTask) and task.data == b"hello" and task.graph is not None
    assert task.graph["inputs"] == {} and task.options == {"voice": "ada"}


@pytest.mark.parametrize("workers", [("thinker:0", "talker:0"), ("thinker:0", "wav:0"), ("talker:0", "wav:0")])
def test_a_stage_without_workers_is_told_at_once(tokenizer: Tokenizer, workers: tuple[str, ...]) -> None:
    with pytest.raises(Unavailable, match="no worker of the stage (wav|talker|thinker) is ready yet"):
        runs_of(site_of(tokenizer, *workers)).submit(Ticket(), PROMPT, PARAMS)


def test_a_later_stage_asks_for_no_more_than_its_workers_hold(tokenizer: Tokenizer) -> None:
    site = StageSite(tokenizer)
    site.join("thinker:0", "wav:0")
    site.join("talker:0", max_model_len=64)
    greedy = replace(PARAMS, temperature=0.0)
    stream = runs_of(site).submit(Ticket(), PROMPT, greedy)
    (task,) = site.workers["talker:0"].tasks
    assert isinstance(task, Submit) and task.sampling["max_tokens"] == 64 - len(PROMPT) - 16
    assert task.sampling["temperature"] == 0.0 and task.sampling["seed"] == greedy.seed
    stream.cancel()


def test_several_choices_with_audio_are_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="one choice"):
        runs_of(site_of(tokenizer)).submit(Ticket(), PROMPT, SamplingParams(max_tokens=5, seed=1, n=2))


def test_a_run_is_one_request_of_its_key(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)
    one = Allowance(requests=1)
    stream = runs_of(site).submit(Ticket(caller="ada", allowance=one), PROMPT, PARAMS)
    with pytest.raises(TooManyRequests):
        runs_of(site).submit(Ticket(caller="ada", allowance=one), PROMPT, PARAMS)
    assert site.metrics.registry.get_sample_value("pontil_num_requests_waiting") == 1
    stream.cancel()
    assert site.admissions.generating.limits.callers["ada"].is_quiet


def test_a_run_waits_for_a_seat_in_every_stage(tokenizer: Tokenizer) -> None:
    """No run may hold a seat that another, already begun, waits for: each is dispatched with all of its stages."""
    site = StageSite(tokenizer)
    site.join("thinker:0", max_num_seqs=3)
    site.join("talker:0", max_num_seqs=2)
    site.join("wav:0", max_num_seqs=9)
    streams = [runs_of(site).submit(Ticket(), PROMPT, PARAMS) for _ in range(6)]
    begun = [len(worker.tasks) for worker in site.workers.values()]
    assert begun == [2, 2, 2] and len(site.queue) == 4
    site.run_until_idle()
    assert all(len(worker.tasks) == 6 for worker in site.workers.values())
    assert len({stream.usage for stream in streams}) == 1 and not any(stream.error for stream in streams)


def test_every_stage_is_a_row_and_the_audit_agrees(tokenizer: Tokenizer, tmp_path: Path) -> None:  # A11, A12
    log = tmp_path / "usage"
    site = site_of(tokenizer, *ALL, "talker:1", usage_log=str(log))
    streams = [runs_of(site).submit(Ticket(f"name-{number}", "ada"), PROMPT, PARAMS) for number in range(3)]
    plain = submit(site, PROMPT, PARAMS, caller="ada")
    for _ in range(9):
        site.step()
    streams[2].cancel()
    site.kill("talker:0")
    site.run_until_idle()
    asyncio.run(asked(site, caller="ada"))
    asyncio.run(site.close())
    assert differing(log) == []
    with closing(open_to_read(log)) as database:
        database.row_factory = sqlite3.Row
        (total,) = usage_sums(database)
        rows = database.execute("SELECT id, name, stage, prompt_tokens, completion_tokens FROM requests").fetchall()
    assert (total.requests, total.api_key) == (4, "ada") and len(rows) == 3 * 3 + 1 + 1
    usage = [stream.usage for stream in (*streams, plain)]
    assert total.completion_tokens == sum(one.completion_tokens for one in usage)
    assert total.prompt_tokens == 4 * len(PROMPT), "no prompt is billed twice"
    run = streams[0].run.id
    assert {row["id"]: row["stage"] for row in rows if row["id"].startswith(run)} == {
        run: None, f"{run}.talker": "talker", f"{run}.wav": "wav",
    }  # fmt: skip
    assert {row["name"] for row in rows if row["stage"] == "wav"} == {"name-0", "name-1", "name-2"}
    assert usage[0].audio_tokens > 0 and usage[3].audio_tokens == 0


def test_a_slow_reader_holds_one_piece_of_audio() -> None:
    box = AudioMailbox(limit=10)
    box.put(b"abcd", RATE)
    box.put(b"ef", RATE)
    assert box.drain() == [AudioDelta(b"abcdef", 0, RATE)] and not box.has_room(5) and box.has_room(4)
    box.put(b"gh", RATE, last=True)
    assert not box.is_drained
    assert box.drain() == [AudioDelta(b"gh", 6, RATE), AudioEnded(8)]
    assert box.drain() == [] and box.is_drained


@pytest.mark.parametrize(
    ("graph", "hello", "says"),
    [
        (GRAPH, {"node": None}, "computes no stage, and the proxy's stages has thinker, talker, wav, hears"),
        (GRAPH, {"node": "painter"}, "computes the stage painter, and the proxy's stages has"),
        (GRAPH, {"node": "wav", "role": "mixed"}, "has the role mixed, which the stage wav cannot have"),
        (GRAPH, {"node": "talker", "role": "node"}, "has the role node, which the stage talker cannot have"),
        (None, {"node": "talker"}, "the proxy's model has no stages: start both with the same --model"),
        (None, {"node": None, "role": "node"}, "the proxy's model has no stages"),
        (GRAPH, {"model_fingerprint": "other"}, "talker:1 has model talker .other. but talker:0 has talker .talker."),
    ],
)
def test_a_worker_of_no_stage_is_refused_in_one_sentence(
    tokenizer: Tokenizer, graph: GraphModel | None, hello: dict[str, Any], says: str
) -> None:
    site = StageSite(tokenizer)
    site.registry.graph = graph
    if graph is not None:
        site.join("talker:0")
    site.join("talker:1", **hello)
    (row,) = [row for row in site.topology() if row["state"] == "REFUSED"]
    with pytest.raises(AssertionError, match=says):
        raise AssertionError(row["reason"])
    assert "\n" not in row["reason"]


def test_workers_are_compared_within_their_stage_and_shown_with_it(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer)
    shown = {row["name"]: row.get("node") for row in site.topology()}
    assert shown == {"proxy": None, "thinker:0": "thinker", "talker:0": "talker", "wav:0": "wav", "hears:0": "hears"}
    assert [load.name for load in site.registry.generating.loads] == ["thinker:0"]
    assert site.registry.of("node:talker").any_hello is not None


def test_a_request_for_text_opens_the_first_stage_only(tokenizer: Tokenizer) -> None:
    site = site_of(tokenizer, "thinker:0")
    stream = submit(site, PROMPT, PARAMS)
    (task,) = site.workers["thinker:0"].tasks
    assert isinstance(task, Submit) and task.graph is None and len(site.requests) == 1
    stream.cancel()


def test_reports_of_passes_merge_and_restart_the_wait(tokenizer: Tokenizer) -> None:  # E5
    site = site_of(tokenizer)
    stream = runs_of(site).submit(Ticket(), PROMPT, PARAMS)
    name, states = stream.run.id, "thinker/talker/states"
    progress = stream.run.progress["thinker"]

    def report(walk: str = "prefill_text", **fields: Any) -> None:
        site.router.on_messages([PassDone("thinker:0", site.incarnation, name, 0, "thinker", walk, **fields)])

    site.now += 5
    report(produced={states: 3, "made/up/edge": 9}, token_counts={states: 70}, walks={"talker": "talker_prefill"})
    assert (progress.produced, progress.token_counts) == ({states: 3}, {states: 70})
    assert stream.run.waits_since == site.now
    site.now += 5
    report(produced={states: 2}, walks={"talker": "painting", "nobody": "talker_decode"})
    assert progress.produced == {states: 3} and progress.walks == {"talker": "talker_prefill"}
    assert stream.run.waits_since == site.now - 5, "nothing has advanced"
    report(walk="decode_text", produced={states: -1}, token_counts={states: "many"}, done=True)
    assert progress.done and progress.walk == "decode_text" and progress.produced == {states: 3}
    report(walk="painting")
    # A stage that moves by itself has only one walk for each number of passes.
    report(walk="decode_text", passes=1)
    report(walk="decode_text", passes=10**12)
    report(walk="prefill_text", passes=-1)
    assert progress.passes == 10**12
    assert site.metrics.registry.get_sample_value("pontil_frames_dropped_total", {"reason": "malformed"}) == 3
    stream.cancel()


@pytest.mark.parametrize("edge", ["talker/wav/codes", "thinker/talker/pictures", ""])
def test_a_report_of_an_edge_that_is_not_its_own_is_dropped(tokenizer: Tokenizer, edge: str) -> None:
    site = site_of(tokenizer)
    stream = runs_of(site).submit(Ticket(), PROMPT, PARAMS)
    site.router.on_messages([Starved("talker:0", site.incarnation, f"{stream.run.id}.talker", 0, edge, 0, "thinker:0")])
    assert site.metrics.registry.get_sample_value("pontil_frames_dropped_total", {"reason": "malformed"}) == 1
    assert stream.request.attempts.number == 0
    stream.cancel()


def test_the_graph_of_a_configuration(tokenizer: Tokenizer) -> None:
    assert graph_of(None) is None
    found = graph_of("qwen3-omni")
    assert found is not None and found.name == "qwen3-omni"
    with pytest.raises(GraphError, match="no model of several stages named nonsense"):
        graph_of("nonsense")
    assert Proxy(site_of(tokenizer).config, tokenizer).graph is None


def test_a_model_of_one_stage_makes_no_audio(tokenizer: Tokenizer) -> None:
    with pytest.raises(RequestError, match="has no stages"):
        runs_of(Proxy(site_of(tokenizer).config, tokenizer))
