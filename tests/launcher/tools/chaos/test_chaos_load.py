# SPDX-License-Identifier: Apache-2.0
"""The load, against a server whose faults are known."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from faulty_server import (
    BROKEN,
    BUSY,
    CHANGED,
    CUT_OFF,
    ERROR,
    FORGOTTEN,
    ODD_SHAPE,
    RESET,
    SHORT,
    SHUT,
    FaultyServer,
    faulty_server,
)

from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.tools.bench.bench_run import open_session
from pontil.launcher.tools.bench.http_client import HttpClient
from pontil.launcher.tools.bench.stream_client import RequestFailed
from pontil.launcher.tools.chaos.chaos_load import AnswerOutcome, ChaosLoad, ExpectedAnswers, undisturbed
from pontil.launcher.tools.chaos.prompts import COMPLETIONS, PROMPTS, ChaosPrompt

T = TypeVar("T")
STREAMED = ChaosPrompt("streamed", COMPLETIONS, {"prompt": "a"})
WHOLE = ChaosPrompt("whole", COMPLETIONS, {"prompt": "b"}, streamed=False)
ODD = ChaosPrompt("odd", COMPLETIONS, {"prompt": "refuse this"})


@pytest.fixture
def server() -> Iterator[FaultyServer]:
    with faulty_server() as made:
        yield made


def asked(server: FaultyServer, ask: Callable[[HttpClient], Coroutine[Any, Any, T]]) -> T:
    async def run() -> T:
        async with open_session(10.0) as session:
            return await ask(HttpClient(session, server.url))

    return asyncio.run(run())


def expected(server: FaultyServer, *prompts: ChaosPrompt, resumes: bool = False) -> ExpectedAnswers:
    return asked(server, lambda client: undisturbed(client, prompts, "m", "salt", resumes))


def loaded(server: FaultyServer, answers: ExpectedAnswers, count: int, resumes: bool = False) -> ChaosLoad:
    """Run one stream for so many requests."""

    async def run(client: HttpClient) -> ChaosLoad:
        load = ChaosLoad(client, "m", [STREAMED, WHOLE, ODD], answers.answers, "salt", resumes)
        running = asyncio.create_task(load.run(1))
        while len(load.records) < count:
            await asyncio.sleep(0)
        load.over.set()
        await running
        return load

    return asked(server, run)


def test_a_prompt_that_is_refused_is_left_out_and_the_others_are_known(server: FaultyServer) -> None:
    found = expected(server, STREAMED, WHOLE, ODD)
    assert set(found.answers) == {"streamed", "whole"} and "no such parameter" in found.refused["odd"]
    assert (found.prompt_tokens, found.completion_tokens) == (12, 16)
    with pytest.raises(LaunchError, match="refuses every prompt"):
        expected(server, ODD)


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ([CHANGED], "does not repeat itself, so nothing can be compared: streamed: choice 0 differs in text"),
        ([SHUT], r"An undisturbed request failed \(streamed\): HTTP 503: no room"),
        (["", ERROR], "An undisturbed request failed: the worker is gone"),
    ],
)
def test_a_server_that_fails_undisturbed_is_not_tried(server: FaultyServer, faults: list[str], says: str) -> None:
    server.faults = list(faults)
    with pytest.raises(LaunchError, match=says):
        expected(server, STREAMED)


@pytest.mark.parametrize(
    ("fault", "outcome", "detail"),
    [
        (CHANGED, AnswerOutcome.CHANGED, "choice 0 differs in text from place"),
        (SHORT, AnswerOutcome.LOST, "it ended early, with no [DONE]"),
        (CUT_OFF, AnswerOutcome.LOST, "it ended early, with no finish reason"),
        (ERROR, AnswerOutcome.LOST, "the worker is gone"),
        (ODD_SHAPE, AnswerOutcome.LOST, "the answer has no shape of the API"),
        (SHUT, AnswerOutcome.LOST, "it was refused without a Retry-After: HTTP 503: no room"),
        (BUSY, AnswerOutcome.REFUSED, "HTTP 503: no room"),
    ],
)
def test_every_fault_of_an_answer_is_told_apart(
    server: FaultyServer, fault: str, outcome: AnswerOutcome, detail: str
) -> None:
    answers = expected(server, STREAMED, WHOLE)
    server.faults = [fault]
    load = loaded(server, answers, 3)
    assert load.records[0].outcome is outcome and detail in load.records[0].detail
    assert {record.outcome for record in load.records[1:]} == {AnswerOutcome.SAME}
    assert load.failures == outcome.is_failure
    assert all(record.completion_tokens == 4 for record in load.records[1:])


def test_a_stream_that_breaks_is_continued_and_is_one_request(server: FaultyServer) -> None:
    answers = expected(server, STREAMED, WHOLE, resumes=True)
    assert not any("x-request-id" in head for head in server.heads)
    before = len(server.heads)
    server.faults = [BROKEN, BUSY]
    load = loaded(server, answers, 2, resumes=True)
    first, whole = load.records[:2]
    assert (first.outcome, first.continued, first.broke, first.name) == (AnswerOutcome.SAME, 1, False, "salt-1")
    begun, refused, again, other = server.heads[before : before + 4]
    assert begun["pontil-resume"] == "1" and refused["last-event-id"] == again["last-event-id"] == "s:1"
    assert {head["x-request-id"] for head in (begun, refused, again)} == {"salt-1"} and load.names == "salt-"
    assert "pontil-resume" not in other and (whole.name, whole.continued) == ("salt-2", 0)
    assert len(first.arrivals) == 4 and sorted(first.arrivals) == list(first.arrivals)


@pytest.mark.parametrize(
    ("faults", "resumes", "broke", "detail"),
    [
        ([RESET], True, True, ""),
        ([RESET], False, True, ""),
        ([BROKEN], False, True, ""),
        ([BROKEN, FORGOTTEN], True, False, "its stream was not continued: HTTP 404: there is no stream of this id"),
    ],
)
def test_what_breaks_and_cannot_be_continued_is_asked_again(
    server: FaultyServer, faults: list[str], resumes: bool, broke: bool, detail: str
) -> None:
    """It is judged afterwards if a proxy was the cause; a stream that was refused for good is lost in any case."""
    answers = expected(server, STREAMED, WHOLE)
    server.faults = list(faults)
    load = loaded(server, answers, 3, resumes)
    first, second = load.records[:2]
    assert (first.outcome, first.broke) == (AnswerOutcome.LOST, broke) and detail in first.detail
    assert (second.outcome, second.prompt) == (AnswerOutcome.SAME, "streamed" if broke else "whole")
    assert first.headless == (broke and resumes)
    assert load.failures == (not broke) and first.name != second.name


def test_streams_have_the_times_of_their_tokens_and_no_two_prompts_the_same_salt(server: FaultyServer) -> None:
    answers = expected(server, STREAMED, WHOLE)
    load = loaded(server, answers, 4)
    streamed, whole, *_ = load.records
    assert len(streamed.arrivals) == 4 and streamed.sent <= streamed.arrivals[0] <= streamed.ended
    assert len(streamed.gaps) == 3 and not whole.arrivals
    salts = [body["cache_salt"] for body in server.asked]
    assert len(set(salts)) == len(salts) and all(body["return_token_ids"] for body in server.asked)


def test_prompts_of_a_family_share_a_salt_for_a_while(server: FaultyServer) -> None:
    kin = ChaosPrompt("kin", COMPLETIONS, {"prompt": "c"}, family="long")

    async def run(client: HttpClient) -> None:
        answers = await undisturbed(client, [kin], "m", "salt")
        load = ChaosLoad(client, "m", [kin], answers.answers, "salt")
        for _ in range(9):
            await load.one(kin)

    asked(server, run)
    salts = [body["cache_salt"] for body in server.asked[2:]]
    assert salts == ["salt long 0"] * 7 + ["salt long 1"] * 2


def test_a_server_that_is_gone_is_a_failed_request() -> None:
    async def run() -> bytes:
        async with open_session(10.0) as session:
            return await HttpClient(session, "http://127.0.0.1:1").get("/metrics")

    with pytest.raises(RequestFailed):
        asyncio.run(run())


def test_the_prompts_are_of_every_kind_and_have_their_own_names() -> None:
    assert len({prompt.name for prompt in PROMPTS}) == len(PROMPTS)
    assert {prompt.streamed for prompt in PROMPTS} == {True, False}
    assert len({prompt.path for prompt in PROMPTS}) == 2
    fields = [prompt.fields for prompt in PROMPTS]
    assert {prompt.can_continue for prompt in PROMPTS if prompt.streamed} == {True, False}
    assert not any(prompt.can_continue for prompt in PROMPTS if not prompt.streamed)
    assert any(one.get("n") == 2 for one in fields) and any("response_format" in one for one in fields)
    assert any(one["temperature"] == 0 for one in fields) and all(
        "seed" in one or not one["temperature"] for one in fields
    )
