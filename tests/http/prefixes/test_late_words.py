# SPDX-License-Identifier: Apache-2.0
"""Answers whose last token is here before a word of the worker that computed the prompt, which only that one can say:
what becomes of a lease, and the logprobs of the prompt. The two workers have connections of their own."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from leasing_worker import LeasingWorker, leasing, leasing_worker
from scripted_site import MODEL, HttpAnswer, ScriptedSite, site
from scripted_worker import DEADLINE, ScriptedWorker, eventually

from pontil.runtime.proxy.requests.lease_wish import UNTOLD
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Failed, Message, Submit

HOUR = {"type": "ephemeral", "ttl": "1h"}
TURN = {"role": "user", "content": [{"type": "text", "text": "a rule that is stable " * 4, "cache_control": HOUR}]}
MESSAGE = {"model": MODEL, "max_tokens": 3, "messages": [TURN]}
SCORED = {"model": MODEL, "prompt": [40, 41, 42], "max_tokens": 3, "prompt_logprobs": 1}
Ask = Callable[..., Future[HttpAnswer]]


class LateWorker(LeasingWorker):
    """A prefill worker whose words about a request come when a test says so."""

    kept: Sequence[Message] = ()


def keeping(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    assert isinstance(worker, LateWorker)
    worker.kept = list(leasing(worker, submit))
    return iter(())


@pytest.fixture
def made(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path, tokenizer, usage_log=str(tmp_path / "usage.db"), disagg="always") as served:
        yield served


@pytest.fixture
def late(made: ScriptedSite) -> LateWorker:
    decode = leasing_worker(made, "decode:0")
    decode.script = leasing
    answer = made.tokenizer.encode("Hello", False)
    worker = LateWorker(made.endpoint, "prefill:0", made.tokenizer, answer, role="prefill").ready(10_000)
    assert isinstance(worker, LateWorker)
    worker.script = keeping
    made.workers.append(worker)
    worker.start()
    known = made.proxy.registry.workers
    eventually(lambda: worker.incarnation in known and known[worker.incarnation].gauges, "the room for leases")
    return worker


@pytest.fixture
def ask(made: ScriptedSite, late: LateWorker) -> Iterator[Ask]:
    """Ask, and wait until all tokens are here of an answer whose prompt nobody has told of."""
    with ThreadPoolExecutor(1) as pool:

        def asked(path: str, body: dict[str, Any]) -> Future[HttpAnswer]:
            answer = pool.submit(made.ask, "POST", path, body)
            eventually(lambda: made.proxy.requests, "the request")
            (request,) = made.proxy.requests.values()
            eventually(lambda: not request.unended and late.kept, "the last token, and the prompt at its worker")
            assert not answer.done() and request.id in made.proxy.requests
            return answer

        yield asked


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_names_its_lease(made: ScriptedSite, late: LateWorker, ask: Ask, stream: bool) -> None:
    asked = ask("/v1/messages", MESSAGE | {"stream": stream})
    for message in late.kept:
        late.say(message)
    answer = asked.result(DEADLINE)
    (lease,) = made.ask("GET", "/v1/prefixes").json["data"]
    assert answer.status == 200 and answer.headers["x-pontil-lease"] == lease["id"]
    said = answer.body.decode().replace(" ", "")
    assert f'"ephemeral_1h_input_tokens":{lease["tokens"]}' in said and lease["tokens"] > 0
    assert not made.proxy.leases.wishes and not made.proxy.requests


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("end", ["death", "failure"])
def test_an_answer_is_there_though_nobody_tells_of_its_lease(
    made: ScriptedSite, late: LateWorker, ask: Ask, stream: bool, end: str
) -> None:
    asked = ask("/v1/messages", MESSAGE | {"stream": stream})
    (request,) = made.proxy.requests.values()
    if end == "death":
        late.fall_silent(made.proxy.registry)
    else:
        late.say(Failed(late.incarnation, late.proxy, request.id, 0, "the handoff failed", 503))
    answer = asked.result(DEADLINE)
    assert answer.status == 200 and answer.headers["x-pontil-lease-refused"] == UNTOLD
    assert answer.headers["x-pontil-lease"] is None and request.attempts.number == 0
    assert not made.proxy.leases.wishes and not made.proxy.requests
    if end == "failure":
        late.say(late.kept[0])
        eventually(lambda: not late.leases, "the release of a lease that nobody was told of")


def test_an_answer_has_the_logprobs_of_its_prompt(late: LateWorker, ask: Ask) -> None:
    asked = ask("/v1/completions", SCORED)
    for message in late.kept:
        late.say(message)
    answer = asked.result(DEADLINE)
    assert answer.status == 200
    (choice,) = answer.json["choices"]
    assert [one is None for one in choice["prompt_logprobs"]] == [True, False, False]
    assert answer.json["usage"]["completion_tokens"] == 3


def test_an_answer_without_the_logprobs_of_its_prompt_is_none(made: ScriptedSite, late: LateWorker, ask: Ask) -> None:
    asked = ask("/v1/completions", SCORED)
    late.fall_silent(made.proxy.registry)
    answer = asked.result(DEADLINE)
    assert answer.status == 503 and "while it served this request" in answer.json["error"]["message"]
    assert not made.proxy.requests
