# SPDX-License-Identifier: Apache-2.0
"""Two real workers and a handoff between them, over real sockets and real shared memory."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pools import need
from workers import PromptWorker, ScriptedProxy, Silent, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.errors import ModelError
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.wire.messages import Begin, ChunkReady, Fetched, Handoff, Submit
from pontil.runtime.worker.generate.prefill import PrefillSide


@pytest.mark.parametrize("length", [1, 15, 16, 17, 32, 200])  # C10: around block boundaries, and several chunks
@pytest.mark.parametrize("params", [greedy(12, ignore_eos=True), drawn(12)], ids=["greedy", "drawn"])
def test_a_handoff_changes_no_token_and_no_count(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], length: int, params: SamplingParams
) -> None:
    prefill, decode = pair
    proxy.submit(decode, "whole", prompt(length), params)
    proxy.submit_pair(prefill, decode, "split", prompt(length), params)
    whole, split = proxy.finish("whole", "split")
    assert split.ids == whole.ids and len(whole.ids) == 12
    assert [frame.generated_tokens for frame in whole.frames if frame.finish_reason] == [12]
    stated = {frame.sender: frame.generated_tokens for frame in split.frames if frame.generated_tokens is not None}
    assert stated == {prefill.incarnation: 1, decode.incarnation: 11}  # A3
    assert all(frame.prompt_tokens == length and frame.cached_tokens == 0 for frame in split.frames)
    everyone_clean(proxy)
    assert decode.decode.counts.complete == 1
    assert decode.decode.counts.bytes == -(-length // 16) * decode.machine.layout.block_bytes


@pytest.mark.parametrize(
    ("sender", "receiver"), [("shm", "shm"), ("tcp", "tcp"), ("auto", "tcp"), ("shm", "auto"), ("nixl", "nixl")]
)
def test_a_handoff_goes_over_any_connector_that_both_know(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, sender: str, receiver: str
) -> None:
    need(sender)
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", kv_connector=sender)
    decode = open_worker(model, tmp_path, "decode:0", "decode", kv_connector=receiver)
    proxy.admit(prefill, decode)
    names = [f"r{number}" for number in range(6)]
    for number, name in enumerate(names):
        proxy.submit_pair(prefill, decode, name, prompt(7 + 40 * number), drawn(6))
        proxy.submit(decode, f"whole-{name}", prompt(7 + 40 * number), drawn(6))
    split, whole = proxy.finish(*names), proxy.finish(*[f"whole-{name}" for name in names])
    assert [answer.ids for answer in split] == [answer.ids for answer in whole]
    everyone_clean(proxy)
    assert (decode.decode.counts.complete, decode.decode.counts.failed) == (6, 0)


def test_workers_without_a_common_connector_say_so(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", kv_connector="shm")
    decode = open_worker(model, tmp_path, "decode:0", "decode", kv_connector="tcp")
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(6))
    (answer,) = proxy.finish("r")
    assert "--kv-connector" in answer.failures[0].reason
    proxy.cancel(prefill, "r")
    everyone_clean(proxy)


def test_an_unknown_connector_is_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--kv-connector pigeon"):
        open_worker(model, tmp_path, "prefill:0", "prefill", kv_connector="pigeon")


def test_blocks_are_pulled_while_the_rest_of_the_prompt_is_computed(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    prefill, decode = pair
    proxy.workers.remove(prefill)
    proxy.submit_pair(prefill, decode, "long", prompt(250), greedy(3, ignore_eos=True))
    early: list[int] = []

    def caught_up() -> bool:
        """Return whether decode has pulled everything that prefill has announced."""
        announced = [sent.announced for sent in prefill.prefill.kv_sender.open.values()]
        transfers = [parked.transfer for parked in decode.decode.parked.values()]
        early.extend(one.bytes // decode.machine.layout.block_bytes for one in transfers if one.handoff is None)
        return not announced or (transfers[0].announced == announced[0] and not transfers[0].pending)

    def computed() -> bool:
        """Let prefill make its next step once decode has caught up; return whether the prompt is computed."""
        proxy.turn_until(caught_up)
        prefill.turn()
        return bool(prefill.prefill.jobs.held)

    proxy.turn_until(computed)
    proxy.workers.insert(0, prefill)
    proxy.finish("long")
    # 250 tokens in steps of 64: three chunks of four blocks were here before the Handoff brought the last.
    assert sorted(set(early)) == [0, 4, 8, 12]
    everyone_clean(proxy)


def test_many_handoffs_share_one_handshake(proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]) -> None:  # C8
    prefill, decode = pair
    names = [f"r{number}" for number in range(12)]
    for number, name in enumerate(names):
        proxy.submit_pair(prefill, decode, name, prompt(3 + 20 * number), drawn(6))
    assert all(len(answer.ids) == 6 for answer in proxy.finish(*names))
    assert len(decode.decode.peers) == 1
    everyone_clean(proxy)


@pytest.mark.parametrize("params", [greedy(1, ignore_eos=True), drawn(9, stop_token_ids=tuple(range(300)))])
def test_a_first_token_that_ends_the_request_moves_nothing(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], params: SamplingParams
) -> None:
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "one", prompt(40), params)
    (answer,) = proxy.finish("one")
    (frame,) = answer.frames
    assert frame.sender == prefill.incarnation and frame.generated_tokens == 1
    assert frame.finish_reason == ("length" if params.max_tokens == 1 else "stop")
    everyone_clean(proxy)
    assert decode.decode.counts.complete == 0


def test_a_prefill_that_is_for_nobody_keeps_no_blocks(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:  # C7, D19
    prefill, _ = pair
    told = Submit(
        proxy.incarnation, prefill.incarnation, "r", 0, prompt(40), drawn(5, stop_token_ids=()).to_wire(), "prefill"
    )
    assert proxy.server.send(told)
    (answer,) = proxy.finish("r")
    assert len(answer.ids) == 5 and answer.frames[-1].finish_reason == "length"
    everyone_clean(proxy)


def test_the_epoch_moves_before_blocks_of_a_finished_prompt_can_be_used_again(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    pool, storage, seen = prefill.machine.pool, prefill.machine.storage, []
    release, before = pool.release, storage.epochs.clone()

    def watch(blocks: list[int], credits: int = 0) -> None:
        seen.append((len(blocks), int((storage.epochs != before).sum())))
        release(blocks, credits)

    monkeypatch.setattr(pool, "release", watch)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(1, n=2))
    proxy.turn_until(lambda: "r" in proxy.answers and proxy.answers["r"].ended(2))
    everyone_clean(proxy)
    assert [epoch for count, epoch in seen if count] == [1, 1]


def test_a_stop_string_ends_the_request_in_the_worker(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    prefill, decode = pair
    proxy.submit(decode, "free", prompt(20), drawn(30))
    (free,) = proxy.finish("free")
    text = decode.machine.tokenizer.decode(free.ids, skip_special_tokens=True)
    stop = text[len(text) // 2 :][:3]
    for name, send in (("split", None), ("whole", decode)):
        if send is None:
            proxy.submit_pair(prefill, decode, name, prompt(20), drawn(30, stop=(stop,)))
        else:
            proxy.submit(send, name, prompt(20), drawn(30, stop=(stop,)))
    whole, split = proxy.finish("whole", "split")
    assert whole.ids == split.ids == free.ids[: len(whole.ids)] and len(whole.ids) < 30
    for answer in (whole, split):
        assert (answer.frames[-1].finish_reason, answer.frames[-1].stop_match) == ("stop", stop)
    everyone_clean(proxy)


def test_cancel_frees_both_sides_wherever_the_request_is(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    prefill, decode = pair
    for turns in range(0, 24, 2):
        name = f"c{turns}"
        proxy.submit_pair(prefill, decode, name, prompt(200), drawn(100))
        for _ in range(turns):
            for worker in proxy.workers:
                worker.turn()
        proxy.cancel_everywhere(name)
        everyone_clean(proxy)
        assert not proxy.answers.get(name) or not proxy.answers[name].finished


def test_blocks_that_arrive_damaged_are_computed_again(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    proxy.submit(decode, "whole", prompt(100), drawn(8))
    monkeypatch.setattr(
        type(decode.machine.storage), "digests", lambda self, blocks, heads=None: [id(self)] * len(blocks)
    )
    proxy.submit_pair(prefill, decode, "split", prompt(60), drawn(8))
    proxy.submit(decode, "same", prompt(60), drawn(8))
    split, same, _ = proxy.finish("split", "same", "whole")
    assert split.ids == same.ids and split.frames[-1].generated_tokens == 7
    assert decode.decode.counts.failed == 1
    everyone_clean(proxy)


@pytest.mark.parametrize(
    "lie",
    [
        {"first_tokens": [10**6]},
        {"first_tokens": [-1]},
        {"first_tokens": []},
        {"computed": 39},
        {"computed": 9999},
        {"choices": []},
        {"choices": [1]},
        {"choices": [0, 0]},
        {"logprobs": []},
        {"logprobs": [[[1.0]]]},
        {"logprobs": [[[float("inf"), -0.5, 1]]]},
        {"logprobs": [[[5, float("nan"), 1]]]},
        {"logprobs": [[[5, -0.5, float("inf")]]]},
        {"cached_tokens": -1},
        {"cached_tokens": 2**63},
    ],
)
def test_a_handoff_that_lies_ends_the_request_and_not_the_worker(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], lie: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    announce = PrefillSide.announce_blocks

    def lying(side: PrefillSide, message: ChunkReady | Handoff) -> None:
        announce(side, replace(message, **lie) if isinstance(message, Handoff) else message)

    monkeypatch.setattr(PrefillSide, "announce_blocks", lying)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(8))
    (answer,) = proxy.finish("r")
    assert "not for this request" in answer.failures[0].reason
    everyone_clean(proxy)
    proxy.submit(decode, "next", prompt(40), drawn(3))
    assert len(proxy.finish("next")[0].ids) == 3


def test_a_lease_that_nobody_ends_expires(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], monkeypatch: pytest.MonkeyPatch
) -> None:
    prefill, decode = pair
    taken = prefill.prefill.take
    monkeypatch.setattr(
        type(prefill.prefill), "take", lambda side, message, now: isinstance(message, Fetched) or taken(message, now)
    )
    prefill.prefill.kv_sender.deadlines = Deadlines(kv_lease=0.2)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(3))
    proxy.finish("r")
    everyone_clean(proxy)
    assert prefill.prefill.expired == 1


def test_requests_of_a_proxy_that_is_gone_are_dropped(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody is warned only if there were any: a proxy that ends as it should goes before its workers."""
    caplog.set_level("INFO", "pontil")
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "old", prompt(100), drawn(400))
    proxy.turn_until(lambda: "old" in proxy.answers and len(proxy.answers["old"].frames) > 3)
    proxy.incarnation = "next proxy"
    proxy.turn_until(lambda: all(worker.link.proxy == "next proxy" for worker in proxy.workers))
    everyone_clean(proxy)
    proxy.submit(decode, "new", prompt(5), drawn(3))
    assert len(proxy.finish("new")[0].ids) == 3
    gone = [one for one in caplog.records if "the proxy is gone" in one.getMessage()]
    assert all((one.levelname == "INFO") == ("gone: 0 requests" in one.getMessage()) for one in gone)
    assert "WARNING" in {one.levelname for one in gone}
    caplog.clear()
    proxy.incarnation = "last proxy"
    proxy.turn_until(lambda: all(worker.link.proxy == "last proxy" for worker in proxy.workers))
    gone = [one for one in caplog.records if "the proxy is gone" in one.getMessage()]
    assert [one.levelname for one in gone] == ["INFO", "INFO"]


def test_messages_for_another_incarnation_are_stale(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    prefill, _ = pair
    before = prefill.sockets.stale
    assert not prefill.sockets.is_mine(Begin("d", "somebody else", "t", "r", 0))
    assert prefill.sockets.stale == before + 1


@pytest.mark.parametrize(
    ("tokens", "params", "says"),
    [
        ([], greedy(3), "empty"),
        ([5, 10**6], greedy(3), "vocabulary"),
        ([5, -1], greedy(3), "vocabulary"),
        ([5], greedy(10**6), "context"),
    ],
)
def test_what_cannot_be_computed_is_refused_by_the_worker(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker], tokens: list[int], params: SamplingParams, says: str
) -> None:
    proxy.submit(pair[1], "bad", tokens, params)
    (answer,) = proxy.finish("bad")
    (failure,) = answer.failures
    assert failure.status == 400 and says in failure.reason


def test_heartbeats_count_every_token_that_was_sent(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:  # A11
    """Requests that finish, are cut short, have choices or are handed over: a worker counts the tokens that it
    generated and sent."""
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "split", prompt(40), drawn(5, n=2))
    proxy.submit(decode, "whole", prompt(9), drawn(200))
    proxy.turn_until(lambda: "whole" in proxy.answers and len(proxy.answers["whole"].ids) > 8)
    proxy.cancel(decode, "whole")
    proxy.turn_until(lambda: "split" in proxy.answers and proxy.answers["split"].ended(2))
    everyone_clean(proxy)

    def received(worker: PromptWorker) -> int:
        frames = [frame for answer in proxy.answers.values() for frame in answer.frames]
        made = sum(len(frame.ids) for frame in frames if frame.sender == worker.incarnation)
        return made - 2 * (worker is decode)  # the first tokens, which it repeats

    for worker in pair:
        counters = worker.load().counters
        counted = counters["generated_tokens"] - counters["generated_before"]
        # The last frames may still be on their way.
        proxy.turn_until(lambda: received(worker) >= counted)  # noqa: B023
        assert received(worker) == counted > 0


def test_a_new_proxy_is_told_what_was_generated_before_it(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(worker)
    before = worker.load().counters
    proxy.submit(worker, "first", prompt(9), drawn(4))
    proxy.finish("first")
    proxy.incarnation = "successor"
    worker.link.links[0].forget()
    proxy.turn_until(lambda: worker.link.proxy == "successor")
    after = worker.load().counters
    assert after["generated_tokens"] == after["generated_before"] == before["generated_before"] + 4


class Listener(Silent):
    """A reporter that remembers the last state of the worker."""

    def __init__(self) -> None:
        self.working = False

    def stepped(self, number: int, working: bool) -> None:
        self.working = working


def test_work_that_was_cancelled_does_not_wait(proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]) -> None:
    """A reported backlog would make the supervisor take the worker for stuck, and kill it."""
    decode = pair[1]
    listener = decode.steps.report = Listener()
    proxy.submit(decode, "r", prompt(20), drawn(300))
    proxy.turn_until(lambda: "r" in proxy.answers)
    assert listener.working
    proxy.cancel(decode, "r")
    everyone_clean(proxy)
    assert not listener.working
