# SPDX-License-Identifier: Apache-2.0
"""What the worker that computed a prompt says of it, once: on its first frame of choice 0."""

from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, prompt

from pontil.runtime.wire.messages import Tokens

Pair = tuple[PromptWorker, PromptWorker]


def openings(proxy: ScriptedProxy, name: str) -> list[Tokens]:
    return [frame for frame in proxy.answers[name].frames if frame.queue_seconds is not None]


def test_the_time_in_the_queue_is_said_by_who_computed_the_prompt(proxy: ScriptedProxy, pair: Pair) -> None:  # B10
    prefill, decode = pair
    ticks = iter(range(1000, 2000))
    for worker in pair:
        worker.machine.scheduler.clock = lambda: float(next(ticks)) + 1e6
    proxy.submit(decode, "whole", prompt(40), drawn(9, n=3))
    proxy.submit_pair(prefill, decode, "split", prompt(40), drawn(9, n=3))
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(3) for name in ("whole", "split")))
    for name, worker in (("whole", decode), ("split", prefill)):
        (frame,) = openings(proxy, name)
        assert (frame.sender, frame.choice, frame.index) == (worker.incarnation, 0, 0)
        assert frame.queue_seconds is not None and frame.queue_seconds > 0
    everyone_clean(proxy)
