# SPDX-License-Identifier: Apache-2.0
"""Several choices and cached prefixes, over real workers and real sockets."""

import pytest
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, everyone_clean, prompt

from pontil.runtime.engine.prefixes.cache import PrefixHit

Pair = tuple[PromptWorker, PromptWorker]


def both(
    proxy: ScriptedProxy, pair: Pair, length: int, n: int, number: int = 0, **settings: object
) -> tuple[WorkerAnswer, WorkerAnswer]:
    """Serve the same request by one worker and by two. Another one of a test has another `number`: no id is used
    twice, since a worker may not have ended the first yet."""
    prefill, decode = pair
    params, whole, split = drawn(12, n=n, **settings), f"whole {number}", f"split {number}"
    proxy.submit(decode, whole, prompt(length), params)
    proxy.submit_pair(prefill, decode, split, prompt(length), params)
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(n) for name in (whole, split)))
    return proxy.answers[whole], proxy.answers[split]


@pytest.mark.parametrize("length", [1, 16, 17, 200])
def test_choices_are_the_same_by_one_worker_and_by_two(proxy: ScriptedProxy, pair: Pair, length: int) -> None:
    whole, split = both(proxy, pair, length, 4)
    prefill, decode = pair
    answers = [whole.choice(number) for number in range(4)]
    assert [split.choice(number) for number in range(4)] == answers
    assert len({tuple(tokens) for tokens in answers}) > 1 and all(len(tokens) == 12 for tokens in answers)
    stated = sorted(
        (frame.sender == decode.incarnation, frame.choice, frame.generated_tokens)
        for frame in split.frames
        if frame.generated_tokens is not None
    )
    assert stated == [(False, number, 1) for number in range(4)] + [(True, number, 11) for number in range(4)]  # A3
    everyone_clean(proxy)
    assert decode.decode.counts.complete == 1, "one transfer"
    assert decode.decode.counts.bytes == -(-length // 16) * decode.machine.layout.block_bytes


def test_choices_that_end_with_their_first_token_are_not_handed_over(proxy: ScriptedProxy, pair: Pair) -> None:
    whole, _ = both(proxy, pair, 40, 5)
    stop = whole.choice(2)[0]
    whole, split = both(proxy, pair, 40, 5, 1, stop_token_ids=(stop,))
    assert [split.choice(number) for number in range(5)] == [whole.choice(number) for number in range(5)]
    ends = [frame for frame in split.frames if frame.sender == pair[0].incarnation and frame.finish_reason]
    assert ends and {frame.finish_reason for frame in ends} == {"stop"}
    everyone_clean(proxy)


def test_when_every_choice_ends_at_once_nothing_is_transferred(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(1, n=3))
    proxy.turn_until(lambda: "r" in proxy.answers and proxy.answers["r"].ended(3))
    assert {frame.sender for frame in proxy.answers["r"].frames} == {prefill.incarnation}
    everyone_clean(proxy)
    assert decode.decode.counts.bytes == 0


@pytest.mark.parametrize("damaged", [False, True])
def test_a_cancel_ends_every_choice(proxy: ScriptedProxy, pair: Pair, damaged: bool) -> None:
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(300, n=3))
    proxy.turn_until(lambda: "r" in proxy.answers and len(proxy.answers["r"].frames) > 8)
    proxy.cancel(decode, "r")
    everyone_clean(proxy)


def test_choices_whose_blocks_are_damaged_are_computed_here(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = type(pair[0].machine.storage)
    monkeypatch.setattr(storage, "digests", lambda self, blocks, heads=None: [id(self)] * len(blocks))
    whole, split = both(proxy, pair, 40, 3)
    assert [split.choice(number) for number in range(3)] == [whole.choice(number) for number in range(3)]
    assert pair[1].decode.counts.failed == 1
    everyone_clean(proxy)


def test_only_what_the_decode_worker_lacks_is_sent(proxy: ScriptedProxy, pair: Pair) -> None:
    """Three turns of a conversation; the last prompt is the second again."""
    prefill, decode = pair
    block = decode.machine.layout.block_bytes
    for name, length, cached, sent in (("a", 40, 0, 3), ("b", 100, 32, 5), ("c", 100, 99, 1), ("d", 96, 95, 0)):
        before = decode.decode.counts.bytes
        proxy.submit(decode, f"{name}-cold", prompt(length), drawn(9))
        proxy.submit_pair(prefill, decode, name, prompt(length), drawn(9), salt="")
        answer, cold = proxy.finish(name, f"{name}-cold")
        assert answer.ids == cold.ids
        assert {frame.cached_tokens for frame in answer.frames} == {cached}  # A9: transferred is not cached
        assert decode.decode.counts.bytes - before == sent * block
    everyone_clean(proxy)
    assert prefill.load().counters["prefix_cache_queries"] == 40 + 100 + 100 + 96
    assert prefill.load().counters["prefix_cache_hits"] == 32 + 99 + 95


def test_concurrent_handoffs_compute_a_shared_prompt_once(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    names = [f"r{number}" for number in range(8)]
    for name in names:
        proxy.submit_pair(prefill, decode, name, prompt(100), drawn(5), salt="")
    answers = proxy.finish(*names)
    assert len({tuple(answer.ids) for answer in answers}) == 1
    assert (
        sorted({frame.cached_tokens for frame in answer.frames} == {99} for answer in answers) == [False] + [True] * 7
    )
    everyone_clean(proxy)


def test_a_decode_worker_that_claims_too_much_gets_nothing(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    monkeypatch.setattr(decode.machine.scheduler.prefix, "find_full", lambda *_: PrefixHit((), None, 4096))
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(5))
    (answer,) = proxy.finish("r")
    assert any("does not have" in failure.reason for failure in answer.failures)
    everyone_clean(proxy)
