# SPDX-License-Identifier: Apache-2.0
"""A later attempt continues after the tokens that the client has, with the same result as one attempt (promises 1, 2,
5)."""

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from effort import by_default
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Cancel, Submit, Tokens
from pontil.runtime.worker.process.worker_request import FirstAdmissions, make_request

Pair = tuple[PromptWorker, PromptWorker]
TOKENS = 24
EVERYTHING: dict[str, Any] = {
    "temperature": 0.9, "top_p": 0.95, "top_k": 40, "min_p": 0.01, "presence_penalty": 0.4, "frequency_penalty": 0.3,
    "repetition_penalty": 1.1, "logit_bias": ((7, 2.0),), "logprobs": 3, "min_tokens": 10, "bad_token_ids": (9,),
    "top_logits": 8,
}  # fmt: skip

NAMED: dict[str, Any] = {"logprobs": 0, "logprob_token_ids": (5, 90, 7)}


def undisturbed(proxy: ScriptedProxy, decode: PromptWorker, length: int, params: SamplingParams) -> WorkerAnswer:
    proxy.submit(decode, "whole", prompt(length), params)
    return ended(proxy, "whole", params.n)


def ended(proxy: ScriptedProxy, name: str, n: int) -> WorkerAnswer:
    proxy.turn_until(lambda: name in proxy.answers and proxy.answers[name].ended(n))
    return proxy.answers[name]


def logprobs_of(answer: WorkerAnswer, choice: int) -> dict[int, Any]:
    """Return the logprobs by index."""
    return {
        index: entry
        for frame in answer.frames
        if frame.choice == choice
        for index, entry in enumerate(frame.logprobs or [], frame.index)
    }


def top_logits_of(answer: WorkerAnswer, choice: int) -> dict[int, bytes]:
    """Return the highest logits of each token, by index."""
    told = dict[int, bytes]()
    for frame in (frame for frame in answer.frames if frame.choice == choice and frame.top_logits):
        each = len(frame.top_logits or b"") // len(frame.ids)
        told |= {
            frame.index + place: (frame.top_logits or b"")[place * each : (place + 1) * each]
            for place in range(len(frame.ids))
        }
    return told


def go_on(
    proxy: ScriptedProxy,
    pair: Pair,
    way: str,
    name: str,
    length: int,
    params: SamplingParams,
    delivered: list[list[int]],
) -> WorkerAnswer:
    """Run a second attempt, in which choices that are complete take no part."""
    prefill, decode = pair
    choices = [number for number, ids in enumerate(delivered) if len(ids) < params.max_tokens]
    more: dict[str, Any] = {"delivered": delivered, "choices": choices}
    if way == "pair":
        proxy.submit_pair(prefill, decode, name, prompt(length), params, **more)
    else:
        proxy.submit(decode, name, prompt(length), params, **more)
    return ended(proxy, name, len(choices))


def check(answer: WorkerAnswer, whole: WorkerAnswer, delivered: list[list[int]]) -> None:
    """Check that no token is repeated or missing, and that only the new ones are counted."""
    assert not answer.failures
    for choice, ids in enumerate(delivered):
        expected = whole.choice(choice)
        frames = [frame for frame in answer.frames if frame.choice == choice]
        told = {index: token for frame in frames for index, token in enumerate(frame.ids, frame.index)}
        assert told == dict(enumerate(expected[len(ids) :], len(ids)))
        stated = [frame.generated_tokens for frame in frames if frame.generated_tokens is not None]
        assert sum(stated) == len(expected) - len(ids)
        known = logprobs_of(whole, choice)
        assert logprobs_of(answer, choice) == {index: known[index] for index in known if index >= len(ids)}
        stated_logits = top_logits_of(whole, choice)
        assert top_logits_of(answer, choice) == {
            index: stated_logits[index] for index in stated_logits if index >= len(ids)
        }
        reasons = {frame.finish_reason for frame in frames} - {None}
        assert reasons == ({"length"} if len(ids) < len(expected) else set())


KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0}, "drawn": {"top_logits": 8}, "everything": EVERYTHING, "named": NAMED,
}  # fmt: skip


def ways_kinds_and_lengths() -> Iterator[ParameterSet]:
    """Yield by a pair every kind with one length, and every length with one kind; by one worker one case. The rest is
    for the long run."""
    for way, (kind, settings), length in product(("pair", "whole"), KINDS.items(), (1, 16, 90)):
        chosen = (length == 90) + (kind == "everything") > (way == "whole")
        yield pytest.param(way, length, settings, id=f"{length}-{kind}-{way}", marks=[] if chosen else pytest.mark.long)


@pytest.mark.parametrize(("way", "length", "settings"), list(ways_kinds_and_lengths()))
def test_an_answer_goes_on_from_any_token(
    proxy: ScriptedProxy, pair: Pair, length: int, settings: dict[str, Any], way: str
) -> None:
    params = drawn(TOKENS, **settings) if "temperature" not in settings else greedy(TOKENS, ignore_eos=True, **settings)
    whole = undisturbed(proxy, pair[1], length, params)
    for count in (0, 1, 2, 16, TOKENS - 1):
        delivered = [whole.ids[:count]]
        check(go_on(proxy, pair, way, f"after {count}", length, params, delivered), whole, delivered)
    everyone_clean(proxy)


@pytest.mark.parametrize(
    ("length", "attempt", "way"),
    by_default(
        {(1, 1, "pair"), (17, 0, "pair"), (90, 0, "whole"), (90, 1, "whole")},
        product((1, 17, 90), (0, 1), ("pair", "whole")),
    ),
)
def test_a_request_without_a_budget_computes_its_prompt_alone(
    proxy: ScriptedProxy, pair: Pair, length: int, attempt: int, way: str
) -> None:
    answer = undisturbed(proxy, pair[1], length, greedy(1, prompt_logprobs=2))
    before = [worker.machine.engine.generated for worker in pair]
    more: dict[str, Any] = {"attempt": 1, "delivered": [[], []]} if attempt else {}
    params = greedy(0, n=2, prompt_logprobs=2)
    if way == "pair":
        proxy.submit_pair(*pair, "r", prompt(length), params, **more)
    else:
        proxy.submit(pair[1], "r", prompt(length), params, **more)
    frames = ended(proxy, "r", 2).frames
    assert not proxy.answers["r"].failures and [frame.ids for frame in frames] == [[], []]
    assert {(frame.generated_tokens, frame.finish_reason) for frame in frames} == {(0, "length")}
    assert frames[0].prompt_logprobs == answer.frames[0].prompt_logprobs and frames[0].computed_tokens == length
    if way == "pair":  # the proxy tells the decode worker
        proxy.server.send(Cancel(proxy.incarnation, pair[1].incarnation, "r", attempt))
    everyone_clean(proxy)
    assert [worker.machine.engine.generated for worker in pair] == before


@pytest.mark.parametrize(
    ("counts", "caching", "way"),
    by_default(
        {
            ((5, 0, 9), True, "pair"), ((5, 0, 9), False, "whole"), ((TOKENS, 3, 1), False, "pair"),
            ((TOKENS, TOKENS, 20), True, "whole"), ((0, TOKENS, 0), False, "pair"),
        },
        (
            (counts, caching, way)
            for counts, caching in (
                *product(((5, 0, 9), (TOKENS, 3, 1)), (True, False)), ((TOKENS, TOKENS, 20), True),
                ((0, TOKENS, 0), False),
            )
            for way in ("pair", "whole")
        ),
    ),
)  # fmt: skip
def test_choices_go_on_each_from_its_own(
    proxy: ScriptedProxy, model: Any, tmp_path: Any, counts: tuple[int, ...], caching: bool, way: str
) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", prefix_caching=caching)
    decode = open_worker(model, tmp_path, "decode:0", "decode", prefix_caching=caching)
    proxy.admit(prefill, decode)
    params = drawn(TOKENS, n=3, logprobs=1)
    whole = undisturbed(proxy, decode, 40, params)
    delivered = [whole.choice(number)[:count] for number, count in enumerate(counts)]
    check(go_on(proxy, (prefill, decode), way, "r", 40, params, delivered), whole, delivered)
    everyone_clean(proxy)


@pytest.mark.parametrize("way", by_default({"pair"}, ["pair", "whole"]))
def test_a_pool_without_room_for_what_was_delivered_takes_its_time(
    proxy: ScriptedProxy, model: Any, tmp_path: Any, way: str
) -> None:
    """Blocks are reserved for a prompt that is being transferred; the delivered tokens may need more than there are."""
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill")
    bytes_of = prefill.machine.layout.block_bytes
    decode = open_worker(model, tmp_path, "decode:0", "decode", kv_cache_memory=13 * bytes_of)
    proxy.admit(prefill, decode)
    params = drawn(120)
    proxy.submit(prefill, "whole", prompt(60), params)
    whole = ended(proxy, "whole", 1)
    delivered = [whole.ids[:100]]
    for number in range(4):
        more: dict[str, Any] = {"delivered": delivered, "choices": [0]}
        if way == "pair":
            proxy.submit_pair(prefill, decode, f"r{number}", prompt(60), params, **more)
        else:
            proxy.submit(decode, f"r{number}", prompt(60), params, **more)
    for number in range(4):
        check(ended(proxy, f"r{number}", 1), whole, delivered)
    everyone_clean(proxy)
    assert way == "whole" or decode.machine.scheduler.preemptions > 0


def test_a_stop_string_may_begin_in_what_was_delivered(proxy: ScriptedProxy, pair: Pair) -> None:
    decode = pair[1]
    whole = undisturbed(proxy, decode, 20, drawn(TOKENS))
    text = decode.machine.tokenizer.decode(whole.ids, skip_special_tokens=True)
    params = drawn(TOKENS, stop=(text[6:12],))
    proxy.submit(decode, "stopped", prompt(20), params)
    stopped = ended(proxy, "stopped", 1)
    for way in ("pair", "whole"):
        for count in range(len(stopped.ids)):
            answer = go_on(proxy, pair, way, f"{way} {count}", 20, params, [stopped.ids[:count]])
            last = answer.frames[-1]
            assert (last.finish_reason, last.stop_match) == ("stop", text[6:12])
            assert last.index + len(last.ids) == len(stopped.ids)
    everyone_clean(proxy)


@pytest.mark.parametrize(
    "more",
    [
        {"delivered": [[10**6]]},
        {"delivered": [[-1]]},
        {"delivered": [[1], [2]]},
        {"delivered": [[1] * 8]},
        {"choices": [1]},
        {"choices": [0, 0]},
    ],
)
@pytest.mark.parametrize("way", ["pair", "whole"])
def test_what_cannot_be_continued_is_refused(proxy: ScriptedProxy, pair: Pair, way: str, more: dict[str, Any]) -> None:
    if way == "pair":
        proxy.submit_pair(*pair, "r", prompt(20), drawn(8), **more)
    else:
        proxy.submit(pair[1], "r", prompt(20), drawn(8), **more)
    (answer,) = proxy.finish("r")
    assert answer.failures[0].status == 400
    everyone_clean(proxy)


def test_a_prefill_worker_that_disagrees_about_the_first_token_is_not_believed(
    proxy: ScriptedProxy, pair: Pair
) -> None:
    prefill, decode = pair
    whole = undisturbed(proxy, decode, 40, drawn(8))
    other = [(whole.ids[0] + 1) % 200, *whole.ids[1:3]]
    common = {"request_id": "r", "attempt": 0, "prompt": prompt(40), "sampling": drawn(8).to_wire()}
    proxy.submit_halves(prefill, decode, common | {"delivered": [other]}, common | {"delivered": [whole.ids[:3]]})
    (answer,) = proxy.finish("r")
    assert "not for this request" in answer.failures[0].reason
    everyone_clean(proxy)


def told_cached(frame: Tokens) -> int | None:
    return frame.cached_tokens if frame.first_cached_tokens is None else frame.first_cached_tokens


@pytest.mark.parametrize("way", ["pair", "whole"])
def test_a_next_attempt_states_what_the_first_found_cached(proxy: ScriptedProxy, pair: Pair, way: str) -> None:  # A9
    """The first attempt was cancelled before it sent anything; tokens that it computed are no cache hit of the
    second."""
    prefill, decode = pair
    worker = prefill if way == "pair" else decode

    def send(name: str, **more: Any) -> None:
        if way == "pair":
            proxy.submit_pair(*pair, name, prompt(400), drawn(8), salt="s", **more)
        else:
            proxy.submit(decode, name, prompt(400), drawn(8), salt="s", **more)

    send("r")
    proxy.turn_until(lambda: any(one.computed >= 128 for one in worker.machine.scheduler.running))
    proxy.cancel_everywhere("r")
    everyone_clean(proxy)
    assert not proxy.answers
    send("r", attempt=1, delivered=[[]], choices=[0])
    (answer,) = proxy.finish("r")
    assert {told_cached(frame) for frame in answer.frames} == {0}
    # Cached and computed tokens of this attempt add up to the prompt (A11).
    (opening,) = [frame for frame in answer.frames if frame.computed_tokens is not None]
    cached, computed = opening.cached_tokens or 0, opening.computed_tokens or 0
    assert cached >= 128 and cached + computed == 400
    send("other")
    assert {frame.cached_tokens for frame in proxy.finish("other")[0].frames} == {399}
    everyone_clean(proxy)


@pytest.mark.parametrize("way", ["pair", "whole"])
def test_what_was_found_cached_is_told_before_anybody_can_find_more(
    proxy: ScriptedProxy, pair: Pair, way: str
) -> None:  # A9
    """A worker that dies in mid-prompt cannot state it any more, and its successor finds what it computed."""
    worker = pair[0] if way == "pair" else pair[1]

    def send(name: str, length: int) -> None:
        if way == "pair":
            proxy.submit_pair(*pair, name, prompt(length), drawn(4), salt=way)
        else:
            proxy.submit(worker, name, prompt(length), drawn(4), salt=way)

    send("first", 48)
    proxy.finish("first")
    assert not proxy.progress, "a prompt of one step states it with its first token"
    send("r", 400)
    proxy.turn_until(lambda: any(one.request_id == "r" for one in proxy.progress))
    told = next(one for one in proxy.progress if one.request_id == "r")
    assert (told.sender, told.attempt, told.cached_tokens) == (worker.incarnation, 0, 48)
    assert told.computed < 400
    assert told_cached(proxy.finish("r")[0].frames[0]) == 48
    everyone_clean(proxy)


def test_an_attempt_that_was_never_admitted_forgets_nothing(proxy: ScriptedProxy, pair: Pair) -> None:  # A9
    """The second attempt is cancelled while it waits, for example for its grammar; the third still reports the number
    that the first found."""
    worker = pair[1]
    admissions = FirstAdmissions()
    for attempt, admitted in enumerate((1, 0, 0, 1)):
        submit = Submit("proxy", worker.incarnation, "r", attempt, prompt(40), drawn(8).to_wire())
        request = admissions.recall(make_request(submit, worker.machine))
        assert request.first_cached == (16 if attempt else None)
        request.sequence.history.admissions, request.sequence.history.cached = admitted, 16 * (attempt + 1)
        admissions.remember(request)
