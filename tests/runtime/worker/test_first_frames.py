# SPDX-License-Identifier: Apache-2.0
"""The facts about a prompt, reported once by the worker that computed it: on its first frame of choice 0."""

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, is_clean, prompt

from pontil.runtime.engine.engine import Output
from pontil.runtime.wire.messages import Tokens

Pair = tuple[PromptWorker, PromptWorker]


def until_ended(proxy: ScriptedProxy, names: tuple[str, ...], n: int) -> None:
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(n) for name in names))


def openings(proxy: ScriptedProxy, name: str) -> list[Tokens]:
    return [frame for frame in proxy.answers[name].frames if frame.queue_seconds is not None]


def test_the_time_in_the_queue_is_said_by_who_computed_the_prompt(proxy: ScriptedProxy, pair: Pair) -> None:  # B10
    prefill, decode = pair
    ticks = iter(range(1000, 2000))
    for worker in pair:
        worker.machine.scheduler.clock = lambda: float(next(ticks)) + 1e6
    proxy.submit(decode, "whole", prompt(40), drawn(9, n=3))
    proxy.submit_pair(prefill, decode, "split", prompt(40), drawn(9, n=3))
    until_ended(proxy, ("whole", "split"), 3)
    for name, worker in (("whole", decode), ("split", prefill)):
        (frame,) = openings(proxy, name)
        assert (frame.sender, frame.choice, frame.index) == (worker.incarnation, 0, 0)
        assert frame.queue_seconds is not None and frame.queue_seconds > 0
    everyone_clean(proxy)


def heartbeat(proxy: ScriptedProxy, worker: PromptWorker) -> dict[str, int]:
    """Return the counters of a heartbeat after everything was sent."""
    proxy.heartbeats.pop(worker.incarnation, None)
    worker.link.links[0].next_send = 0.0
    proxy.turn_until(lambda: worker.incarnation in proxy.heartbeats)
    return proxy.heartbeats[worker.incarnation].counters


def told(proxy: ScriptedProxy, worker: PromptWorker) -> int:
    frames = [frame for answer in proxy.answers.values() for frame in answer.frames]
    return sum(frame.computed_tokens or 0 for frame in frames if frame.sender == worker.incarnation)


@pytest.mark.parametrize("length", [1, 16, 40, 200])
def test_a_prompt_is_cached_or_computed_and_the_sum_is_the_workers_own(
    proxy: ScriptedProxy, pair: Pair, length: int
) -> None:  # A11
    prefill, decode = pair
    for round_ in ("cold", "warm", "warmer"):
        names = (f"whole {round_}", f"split {round_}")
        proxy.submit(decode, names[0], prompt(length), drawn(5, n=2), salt="same")
        proxy.submit_pair(prefill, decode, names[1], prompt(length), drawn(5, n=2), salt="same")
        until_ended(proxy, names, 2)
        for name in names:
            (frame,) = openings(proxy, name)
            assert frame.computed_tokens is not None and frame.cached_tokens is not None
            assert frame.cached_tokens + frame.computed_tokens == frame.prompt_tokens == length
            assert round_ == "cold" or frame.computed_tokens == 1
    everyone_clean(proxy)
    for worker in pair:
        counters = heartbeat(proxy, worker)
        stated = counters["prompt_tokens_computed"] - counters["prompt_tokens_computed_before"]
        assert stated == told(proxy, worker) > 0


def test_how_the_kv_came_is_said_by_who_pulled_it(proxy: ScriptedProxy, pair: Pair) -> None:  # G2
    prefill, decode = pair
    proxy.submit(decode, "whole", prompt(40), drawn(9, n=2))
    proxy.submit_pair(prefill, decode, "split", prompt(40), drawn(9, n=2))
    until_ended(proxy, ("whole", "split"), 2)
    said = [frame for answer in proxy.answers.values() for frame in answer.frames if frame.pulled_bytes is not None]
    (frame,) = said
    assert (frame.request_id, frame.sender, frame.index) == ("split", decode.incarnation, 0)
    assert frame.pulled_bytes == 3 * decode.machine.layout.block_bytes
    assert frame.pulled_seconds is not None and frame.pulled_seconds > 0 and frame.pull_error is None
    everyone_clean(proxy)


def test_a_result_for_nobody_who_is_known_is_dropped_and_counted(proxy: ScriptedProxy, pair: Pair) -> None:  # A2
    """The request may be cancelled in the turn in which the step was made."""
    _, decode = pair
    proxy.submit(decode, "kept", prompt(20), drawn(6))
    proxy.submit(decode, "gone", prompt(30), drawn(60))
    step = decode.machine.engine.step

    def then_cancelled() -> list[Output]:
        outputs = step()
        if (request := decode.requests.get("gone#0")) is not None and request.sequence.output:
            decode.worker.cancel(request, decode.now)
        return outputs

    decode.machine.engine.step = then_cancelled  # type: ignore[method-assign]
    (answer,) = proxy.finish("kept")
    proxy.turn_until(lambda: is_clean(decode))
    assert len(answer.ids) == 6 and "gone" not in proxy.answers
    counters = heartbeat(proxy, decode)
    assert counters["results_dropped"] == 1
    assert counters["generated_tokens"] - counters["generated_before"] == 6, "what was told"
    assert counters["prompt_tokens_computed"] - counters["prompt_tokens_computed_before"] == 20
