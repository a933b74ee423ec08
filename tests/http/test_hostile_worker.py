# SPDX-License-Identifier: Apache-2.0
"""A worker that reports false counts: the client's bill stays within bounds, and the proxy keeps serving."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_site import HttpAnswer, ScriptedSite, site
from scripted_worker import Script, ScriptedWorker, eventually, proper

from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import Message, Submit

IDS, BUDGET, HUGE = [40, 41, 42], 8, 2**63
# Counts in the terminal frame of each choice (None: absent), and the tokens that are billed.
COUNTS: dict[str, tuple[tuple[int | None, ...], int]] = {
    "the truth": ((3,), 3),
    "missing": ((None,), 3),
    "negative": ((-7,), 3),
    "very negative": ((-(2**63),), 3),
    "fewer than it sent": ((2,), 2),
    "one more": ((4,), 3),
    "huge": ((HUGE,), 3),
    "the largest": ((2**64 - 1,), 3),
    "repeated": ((3, 3, 3), 3),
    "another each time": ((2, HUGE, -1, 7), 2),
    "none, then some": ((None, 5), 3),
}


@pytest.fixture
def alone(tmp_path: Path, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    """A site of its own, which never declares a worker dead and makes one attempt."""
    with site(tmp_path, tokenizer, worker_ttl=60.0, max_attempts=1) as made:
        yield made


def saying(counts: tuple[int | None, ...]) -> Script:
    """Return a script in which each choice has `IDS`, one per frame; all counts but the last come on repeats of the
    second frame, the last one on the last frame."""

    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        for choice in range(submit.sampling["n"]):
            for index, token in enumerate(IDS[:-1]):
                yield worker.tokens(submit, index, [token], choice=choice)
            for count in counts[:-1]:
                yield worker.tokens(submit, 1, IDS[1:2], choice=choice, generated_tokens=count)
            last = {"choice": choice, "finish_reason": "stop", "generated_tokens": counts[-1]}
            yield worker.tokens(submit, 2, IDS[2:], **last)

    return script


def usage(answer: HttpAnswer) -> dict[str, Any]:
    assert answer.status == 200, answer.body
    found: dict[str, Any] = (answer.events[-2] if answer.events else answer.json)["usage"]
    return found


def ask(site: ScriptedSite, n: int, stream: bool, **fields: Any) -> HttpAnswer:
    options = {"stream_options": {"include_usage": True}} if stream else {}
    return site.complete(n=n, max_tokens=BUDGET, stream=stream, **options, **fields)


def check_alive(site: ScriptedSite) -> None:
    """Check that every slot is free again and an honest worker is served as before."""
    eventually(lambda: site.proxy.idle, "an idle proxy")
    for worker in site.workers:
        worker.script = proper
    answer = site.complete(max_tokens=4)
    assert usage(answer)["completion_tokens"] == 4 and answer.json["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("n", [1, 3])
def test_no_count_corrupts_the_bill(alone: ScriptedSite, n: int) -> None:  # A5
    worker = alone.worker()
    for name, (counts, billed) in COUNTS.items():
        worker.script = saying(counts)
        for stream in (False, True):
            told = usage(ask(alone, n, stream))
            assert told["completion_tokens"] == n * billed, (name, stream)
            assert told["total_tokens"] == told["prompt_tokens"] + n * billed
    assert alone.value("pontil_counts_clamped_total") == 2 * 2 * n
    check_alive(alone)


def test_a_prefill_worker_that_lies_is_clamped_too(alone: ScriptedSite) -> None:
    """The counts of the prefill and decode workers are summed; where one is missing, ids are counted. Undelivered
    tokens are never billed."""
    prefill, decode = alone.pair()

    def late(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        eventually(lambda: alone.proxy.requests[submit.request_id].times.begun, "prefill's word")
        yield from saying((2,))(worker, submit)

    for stated, billed in ((1, 3), (None, 3), (-5, 3), (HUGE, 3), (4, 3), (0, 2)):

        def first(worker: ScriptedWorker, submit: Submit, stated: int | None = stated) -> Iterator[Message]:
            yield worker.tokens(submit, 0, IDS[:1], generated_tokens=stated, cached_tokens=HUGE)

        prefill.script, decode.script = first, late
        told = usage(ask(alone, 1, False))
        assert told["completion_tokens"] == billed
        assert told["prompt_tokens_details"]["cached_tokens"] == told["prompt_tokens"]
    check_alive(alone)


NONSENSE: tuple[dict[str, Any], ...] = (
    {"choice": 3}, {"choice": -1}, {"choice": HUGE}, {"index": -1}, {"ids": [-1]}, {"ids": [2**40]},
    {"logprobs": [[[40, -0.5, 1]]]}, {"prompt_logprobs": [[]]},
)  # fmt: skip


def nonsense(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Yield, among the frames of a correct response, frames that do not belong to this request; each of them is
    dropped."""
    for frame in saying((3,))(worker, submit):
        for bad in NONSENSE:
            fields: dict[str, Any] = {"index": 0, "ids": IDS[:1], "generated_tokens": HUGE, "finish_reason": "stop"}
            yield worker.tokens(submit, **fields | bad)
        yield frame


@pytest.mark.parametrize("stream", [False, True])
def test_frames_that_are_not_the_requests_are_dropped(alone: ScriptedSite, stream: bool) -> None:
    alone.worker(script=nonsense)
    assert usage(ask(alone, 3, stream))["completion_tokens"] == 9
    # The last frame of the response ends the request.
    assert alone.value("pontil_frames_dropped_total", reason="malformed") == 9 * len(NONSENSE)
    check_alive(alone)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("index", "ids"), [(2, [42]), (HUGE, [42]), (0, [41]), (0, [40, 42])], ids=["gap", "far", "other", "another"]
)
def test_frames_that_do_not_fit_together_end_the_request(
    alone: ScriptedSite, index: int, ids: list[int], stream: bool
) -> None:
    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [40] if index else [40, 41], choice=1)
        yield worker.tokens(submit, index, ids, choice=1, generated_tokens=HUGE)

    alone.worker(script=script)
    answer = ask(alone, 3, stream)
    error = answer.events[-1]["error"] if answer.events else answer.json["error"]
    assert error["type"] == "server_error" and "of the answer" in error["message"]
    assert alone.value("pontil_frames_dropped_total", reason="broken") == 1
    assert alone.value("pontil_generation_tokens_total") <= 2, "what arrived is booked, not what was claimed"
    check_alive(alone)


@pytest.mark.parametrize("logprobs", [[], [[]], [[[40]]], [[[40, float("nan"), 1]]], [[[40, -0.5, 1]]] * 2])
def test_logprobs_that_cannot_be_shown_are_dropped_with_their_frame(alone: ScriptedSite, logprobs: Any) -> None:
    def script(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
        yield worker.tokens(submit, 0, [40], logprobs=logprobs, generated_tokens=HUGE, finish_reason="stop")
        shown = {"logprobs": [[[40, -0.5, 1]]], "generated_tokens": 1, "finish_reason": "stop"}
        yield worker.tokens(submit, 0, [40], **shown)

    alone.worker(script=script)
    for stream in (False, True):
        assert usage(ask(alone, 1, stream, logprobs=0))["completion_tokens"] == 1
    check_alive(alone)
