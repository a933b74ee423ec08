# SPDX-License-Identifier: Apache-2.0
"""Prompts that are computed and kept for a worker that claims them later, as where another router drives both."""

import time
from pathlib import Path
from typing import Any

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.disaggregation.states import SendState
from pontil.runtime.engine.sequences.prompt_keys import SaltedPrefix, UsedAdapter
from pontil.runtime.engine.sequences.sequence import Sequence
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Begin
from pontil.runtime.worker.generate.handoff_check import prompt_digest

Pair = tuple[PromptWorker, PromptWorker]


def hold(proxy: ScriptedProxy, prefill: PromptWorker, name: str, ids: list[int], **more: Any) -> None:
    """Have a prompt computed and kept, as the first request of a foreign router does."""
    proxy.submit(prefill, name, ids, greedy(1), phase="hold", transfer_id=f"t-{name}", **more)
    (answer,) = proxy.finish(name)
    assert not answer.failures and len(answer.ids) == 1
    (sent,) = [one for key, one in prefill.prefill.kv_sender.open.items() if key == f"t-{name}"]
    assert answer.frames[-1].kept_blocks == sent.blocks == [*dict.fromkeys(sent.blocks)]
    assert len(sent.blocks) == -(-len(ids) // prefill.machine.layout.block_size)


def claim(
    proxy: ScriptedProxy, pair: Pair, name: str, ids: list[int], params: SamplingParams, held: str, **more: Any
) -> None:
    prefill, decode = pair
    peer = {"peer": prefill.incarnation, "peer_endpoint": prefill.peers_in.endpoint} | more
    proxy.submit(decode, name, ids, params, phase="claim", transfer_id=f"t-{held}", **peer)


@pytest.mark.parametrize(
    ("length", "params"),
    [
        (1, drawn(12)),
        (16, greedy(12, ignore_eos=True)),
        (17, drawn(12)),
        (32, drawn(5, n=3)),
        (200, drawn(12)),
        (40, drawn(1)),
    ],
)
def test_a_claimed_prompt_gives_the_tokens_and_counts_of_one_worker(
    proxy: ScriptedProxy, pair: Pair, length: int, params: SamplingParams
) -> None:
    prefill, decode = pair
    before = decode.machine.engine.prompt_computed
    proxy.submit(decode, "whole", prompt(length), params)
    hold(proxy, prefill, "first", prompt(length))
    claim(proxy, pair, "second", prompt(length), params, "first")
    names, answers = ("whole", "second"), proxy.answers
    proxy.turn_until(lambda: all(name in answers and answers[name].ended(params.n) for name in names))
    whole, second = proxy.answers["whole"], proxy.answers["second"]
    for choice in range(params.n):
        assert second.choice(choice) == whole.choice(choice) and len(whole.choice(choice)) == params.max_tokens
    assert [frame.generated_tokens for frame in second.frames if frame.finish_reason] == [params.max_tokens] * params.n
    assert all(frame.prompt_tokens == length and frame.cached_tokens == 0 for frame in second.frames)
    assert [frame.generated_tokens for frame in proxy.answers["first"].frames] == [1]
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (1, 0)
    assert decode.decode.counts.bytes == -(-length // 16) * decode.machine.layout.block_bytes
    assert decode.machine.engine.prompt_computed == before + length, "only of the request that was computed here whole"


@pytest.mark.parametrize("settings", [{"speculative_tokens": 4}, {"prefix_caching": False}, {"kv_connector": "tcp"}])
def test_whatever_the_workers_do_besides(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", **settings)
    decode = open_worker(model, tmp_path, "decode:0", "decode", **settings)
    proxy.admit(prefill, decode)
    ids, params = prompt(20) * 3, greedy(24, logprobs=2, stop=("never",), ignore_eos=True)
    hold(proxy, prefill, "first", ids)
    claim(proxy, (prefill, decode), "second", ids, params, "first")
    proxy.submit(decode, "whole", ids, params)
    second, whole = proxy.finish("second", "whole")
    assert second.ids == whole.ids and second.frames[0].pull_error is None
    known = [[entry for frame in answer.frames for entry in frame.logprobs or []] for answer in (second, whole)]
    assert known[0] == known[1] and len(known[0]) == 24
    everyone_clean(proxy)


def test_a_long_prompt_has_time_as_long_as_it_advances(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, _ = pair
    proxy.submit(prefill, "first", prompt(250), greedy(1), phase="hold", transfer_id="t-first")
    deadlines: list[float] = []

    def computed() -> bool:
        deadlines.extend(one.deadline for one in prefill.prefill.kv_sender.open.values() if not one.blocks)
        return "first" in proxy.answers

    proxy.turn_until(computed)
    assert len(set(deadlines)) >= 3, "a step restarts the limit"
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)


def test_of_a_cached_prompt_only_the_rest_is_pulled(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    proxy.submit(decode, "before", prompt(64), drawn(4), salt="same")
    proxy.finish("before")
    hold(proxy, prefill, "first", prompt(64))
    claim(proxy, pair, "second", prompt(64), drawn(4), "first", salt="same")
    proxy.finish("before", "second")
    assert proxy.answers["second"].ids == proxy.answers["before"].ids
    everyone_clean(proxy)
    # The last position is computed here, so its block is not among those that are found.
    assert decode.decode.counts.bytes == decode.machine.layout.block_bytes


def test_a_prompt_is_claimed_once(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    hold(proxy, prefill, "first", prompt(40))
    names = ["a", "b", "c"]
    for name in names:
        claim(proxy, pair, name, prompt(40), drawn(4), "first")
    answers = proxy.finish(*names)
    claim(proxy, pair, "late", prompt(40), drawn(4), "first")
    (late,) = proxy.finish("late")
    assert all(answer.ids == late.ids for answer in answers)
    assert [bool(frame.pull_error) for answer in answers for frame in answer.frames[:1]] == [False, True, True]
    assert "claimed before" in str(late.frames[0].pull_error)
    assert late.frames[0].cached_tokens == 0 and late.frames[0].computed_tokens == 40
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (1, 3)


@pytest.mark.parametrize(
    ("ids", "more", "says"),
    [
        (prompt(39), {}, "another one"),
        ([*prompt(39), 1], {}, "another one"),
        (prompt(40), {"peer": "nobody"}, "did not answer"),
        (prompt(40), {"peer": "nobody", "peer_endpoint": "tcp://127.0.0.1:9"}, "did not answer"),
    ],
)
def test_what_cannot_be_had_is_computed(
    proxy: ScriptedProxy, pair: Pair, ids: list[int], more: dict[str, Any], says: str
) -> None:
    """The time in which nobody answers passes at once; whoever is there may be as slow as a loaded machine is."""
    prefill, decode = pair
    hold(proxy, prefill, "first", prompt(40))
    proxy.submit(decode, "whole", ids, drawn(4))
    claim(proxy, pair, "second", ids, drawn(4), "first", **more)
    if more:
        proxy.turn_until(lambda: "nobody" in decode.decode.peers)
        decode.decode.tick(decode.decode.peers["nobody"].deadline)
    whole, second = proxy.finish("whole", "second")
    assert second.ids == whole.ids and says in str(second.frames[0].pull_error)
    assert second.frames[0].computed_tokens == len(ids)
    # A claim that was refused takes nothing from the worker that the prompt is meant for.
    claim(proxy, pair, "right", prompt(40), drawn(4), "first")
    proxy.finish("right")
    assert decode.decode.counts.complete == 1
    everyone_clean(proxy)


def test_a_claim_says_which_blocks_it_was_told_of(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    proxy.submit(decode, "whole", prompt(40), drawn(4))
    for name in ("a", "b"):
        hold(proxy, prefill, name, prompt(40))
        right = prefill.prefill.kv_sender.open[f"t-{name}"].blocks
        told = right if name == "a" else right[::-1]
        claim(proxy, pair, f"of-{name}", prompt(40), drawn(4), name, peer_blocks=told)
    whole, first, second = proxy.finish("whole", "of-a", "of-b")
    assert first.ids == second.ids == whole.ids
    assert first.frames[0].pull_error is None and "not for this request" in str(second.frames[0].pull_error)
    everyone_clean(proxy)


def test_prompts_that_nobody_claims_leave_memory_to_others(proxy: ScriptedProxy, pair: Pair) -> None:
    """A client that asks again and again has some prompts kept, and the others answered; other clients' are kept."""
    prefill, _ = pair
    pool = prefill.machine.pool

    def kept(caller: str, length: int) -> int:
        """Return how many blocks of such prompts are kept for a caller until one is not."""
        before, more = pool.available, True
        while more:
            name = f"{caller}{len(proxy.answers)}"
            proxy.submit(prefill, name, prompt(length), greedy(1), phase="hold", transfer_id=f"t-{name}", caller=caller)
            (answer,) = proxy.finish(name)
            more = answer.frames[-1].kept_blocks is not None
            assert len(answer.ids) == 1
        return before - pool.available

    most = pool.capacity // 2
    greediest = kept("a", 40)
    assert most // 2 - 3 < greediest <= most // 2
    for caller in ("b", "c"):
        left = most - (pool.capacity - pool.available)
        assert left // 2 - 1 < kept(caller, 16) <= left // 2 and left > 3
    assert kept("a", 16) == 0 and pool.available > pool.capacity // 2
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    hold(proxy, prefill, "after", prompt(250))
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)


def test_prompts_that_nobody_claims_leave_slots_to_others(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt of one token takes as much of the slots as any other one."""
    prefill, _ = pair
    monkeypatch.setattr("pontil.runtime.worker.generate.prefill_jobs.EPOCH_SLOTS", 12)
    kept: dict[str, int] = {}
    for number, caller in enumerate("aaaaabbbcc"):
        name = f"{caller}{number}"
        proxy.submit(prefill, name, [5], greedy(1), phase="hold", transfer_id=f"t-{name}", caller=caller)
        (answer,) = proxy.finish(name)
        kept[caller] = kept.get(caller, 0) + (answer.frames[-1].kept_blocks is not None)
    assert kept == {"a": 3, "b": 1, "c": 1}
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)


def test_a_prompt_that_nobody_claims_expires_and_is_counted(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    hold(proxy, prefill, "first", prompt(40))
    assert [one.state for one in prefill.prefill.kv_sender.open.values()] == [SendState.KEPT] and not prefill.is_idle
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    assert prefill.prefill.expired == 1 and prefill.is_idle
    claim(proxy, pair, "second", prompt(40), drawn(4), "first")
    (second,) = proxy.finish("second")
    assert "its time ran out" in str(second.frames[0].pull_error) and len(second.ids) == 4
    everyone_clean(proxy)


def test_a_prefill_worker_that_is_gone_costs_a_claim_its_silence_and_no_more(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    for name in ("a", "b"):
        hold(proxy, prefill, name, prompt(40))
    claim(proxy, pair, "first", prompt(40), drawn(4), "a")
    (first,) = proxy.finish("first")
    proxy.workers.remove(prefill)
    claim(proxy, pair, "second", prompt(40), drawn(4), "b")
    proxy.turn_until(lambda: "t-b" in decode.decode.kv_receiver.open)
    transfer = decode.decode.kv_receiver.open["t-b"]
    assert transfer.patience == decode.config.deadlines.kv_stall_timeout
    decode.decode.poll(transfer.deadline)
    (second,) = proxy.finish("second")
    assert second.ids == first.ids and "was not complete within 5 s" in str(second.frames[0].pull_error)
    proxy.workers.insert(0, prefill)
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)


def test_a_cancel_leaves_nothing(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    proxy.submit(prefill, "held", prompt(250), greedy(1), phase="hold", transfer_id="t-held")
    proxy.turn_until(lambda: bool(prefill.prefill.jobs.open))
    # Not by a message: the prompt might be computed, and kept, before that arrives.
    (held,) = prefill.requests.values()
    prefill.worker.cancel(held, time.monotonic())
    proxy.turn_until(lambda: not prefill.requests)
    hold(proxy, prefill, "first", prompt(40))
    proxy.workers.remove(prefill)
    for name in ("first", "twin"):
        claim(proxy, pair, f"of-{name}", prompt(40), drawn(400), "first")
    proxy.turn_until(lambda: len(decode.requests) == 2)
    proxy.cancel(decode, "of-first")
    proxy.cancel(decode, "of-twin")
    proxy.turn_until(lambda: not decode.requests)
    proxy.workers.insert(0, prefill)
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)
    assert prefill.prefill.expired == 1, "the prompt that was claimed and not wanted, or not claimed"


def test_named_peers_do_not_collect_and_disturb_no_other(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    monkeypatch.setattr("pontil.runtime.worker.generate.decode.MOST_PEERS", 3)
    hold(proxy, prefill, "first", prompt(40))
    proxy.workers.remove(prefill)
    claim(proxy, pair, "right", prompt(40), drawn(4), "first")
    proxy.turn_until(lambda: len(decode.decode.peers) == 1)
    for number in range(5):
        claim(proxy, pair, f"other{number}", prompt(40), drawn(4), f"x{number}", peer=f"p{number}")
    answers = proxy.finish(*[f"other{number}" for number in range(5)])
    assert all("has the address" in str(answer.frames[0].pull_error) for answer in answers)
    for number in range(5):
        more = {"peer": f"q{number}", "peer_endpoint": f"tcp://127.0.0.1:{10 + number}"}
        claim(proxy, pair, f"far{number}", prompt(40), drawn(4), f"y{number}", **more)
    proxy.turn_until(lambda: len(decode.requests) == 3)
    assert len(decode.decode.peers) == 3
    proxy.workers.insert(0, prefill)
    (right,) = proxy.finish("right")
    assert right.frames[0].pull_error is None and right.frames[0].pulled_bytes
    decode.decode.tick(time.monotonic() + 60.0)
    proxy.finish(*[f"far{number}" for number in range(5)])
    everyone_clean(proxy)


def test_a_claim_that_is_no_claim_of_this_prompt_is_refused(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, _ = pair
    hold(proxy, prefill, "first", prompt(40))
    kept, one = prefill.prefill.kept, Sequence("s", prompt(40), SamplingParams(1, seed=1), frozenset())
    digest = "0" * 64
    for have, ranks in ((-1, 1), (3, 1), (0, 7)):
        begin = Begin("d", prefill.incarnation, "t-first", "r", 0, have, ranks, prompt_digest=digest)
        assert kept.objection(begin, one) == "the prompt that is kept is another one"
    digest = prompt_digest(prompt(40))
    for have, ranks, says in ((-1, 1, "so many blocks"), (3, 1, "so many blocks"), (0, 7, "ranks (7)")):
        begin = Begin("d", prefill.incarnation, "t-first", "r", 0, have, ranks, prompt_digest=digest)
        assert says in str(kept.objection(begin, one))
    one.prefix = SaltedPrefix(adapter=UsedAdapter("5a" * 32, 0))
    assert kept.objection(begin, one) == "the prompt that is kept is another one"
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)


def test_a_worker_takes_its_own_prompt(proxy: ScriptedProxy, pair: Pair) -> None:
    """A router may name one endpoint for both phases."""
    prefill, _ = pair
    hold(proxy, prefill, "first", prompt(40))
    claim(proxy, (prefill, prefill), "second", prompt(40), drawn(4), "first")
    proxy.submit(prefill, "whole", prompt(40), drawn(4))
    second, whole = proxy.finish("second", "whole")
    assert second.ids == whole.ids and second.frames[0].pull_error is None
    everyone_clean(proxy)
    assert prefill.decode.counts.complete == 1


def test_of_a_worker_with_another_layout_nothing_is_had(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", block_size=32)
    decode = open_worker(model, tmp_path, "decode:0", "decode")
    proxy.admit(prefill, decode)
    hold(proxy, prefill, "first", prompt(40))
    claim(proxy, (prefill, decode), "second", prompt(40), drawn(4), "first")
    proxy.submit(decode, "whole", prompt(40), drawn(4))
    second, whole = proxy.finish("second", "whole")
    assert second.ids == whole.ids and "block" in str(second.frames[0].pull_error)
    prefill.tick(time.monotonic() + prefill.config.deadlines.kv_lease + 1)
    everyone_clean(proxy)
