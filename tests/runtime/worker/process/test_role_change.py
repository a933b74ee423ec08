# SPDX-License-Identifier: Apache-2.0
"""A worker drains, returns and changes its role between requests, in any state."""

import json
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from workers import PromptWorker, ScriptedProxy, Silent, drawn, everyone_clean, is_clean, prompt

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.wire.messages import Tokens
from pontil.runtime.worker.process.loop import SupervisorCommands

Pair = tuple[PromptWorker, PromptWorker]
NOW, LATER = 0.0, 60.0


class RoleListener(Silent):
    """A supervisor that remembers the orders reported as carried out."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, bool]] = []

    def settled(self, order: int, drained: bool) -> None:
        self.heard.append((order, drained))


class Commander:
    """The supervisor's end of a worker's pipe."""

    def __init__(self, worker: PromptWorker) -> None:
        reading, self.writing = os.pipe()
        self.listener = worker.assigned_role.report = RoleListener()
        self.number, self.worker = 0, worker
        self.pipe = CommandPipe(reading, logging.getLogger("pontil.worker"))
        self.commands = worker.commands = SupervisorCommands(self.pipe, worker.poller, worker.assigned_role, {})

    def tell(self, role: str, drain: float | None, **more: bool) -> None:
        self.number += 1
        order = {"kind": "role", "order": self.number, "role": role, "drain": drain, **more}
        os.write(self.writing, json.dumps(order).encode() + b"\n")

    def is_obeyed(self, *, drained: bool) -> bool:
        return self.listener.heard[-1:] == [(self.number, drained)]

    def close(self) -> None:
        """Close the pipe; the worker notices and stops listening."""
        os.close(self.writing)
        self.commands.obey(time.monotonic())
        assert self.pipe.closed
        os.close(self.pipe.descriptor)


@pytest.fixture
def commander(pair: Pair) -> Iterator[Commander]:
    made = Commander(pair[1])
    yield made
    made.close()


def frames(proxy: ScriptedProxy, name: str) -> list[Tokens]:
    return proxy.answers[name].frames if name in proxy.answers else []


def is_draining(proxy: ScriptedProxy, worker: PromptWorker) -> bool:
    """Return whether the worker drains, as far as the proxy knows."""
    return worker.incarnation in proxy.duties and proxy.duties[worker.incarnation].draining


def test_who_drains_finishes_what_it_has_and_says_so_once(
    proxy: ScriptedProxy, pair: Pair, commander: Commander
) -> None:  # C1
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(60))
    proxy.turn_until(lambda: len(frames(proxy, "r")) > 3)
    commander.tell("decode", LATER)
    proxy.turn_until(lambda: is_draining(proxy, decode))
    assert not commander.listener.heard and decode.requests
    (answer,) = proxy.finish("r")
    assert len(answer.ids) == 60 and not answer.failures
    proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    commander.tell("decode", None)
    proxy.turn_until(lambda: commander.is_obeyed(drained=False))
    assert not is_draining(proxy, decode) and commander.listener.heard == [(1, True), (2, False)]


def test_what_takes_too_long_is_given_back_and_nothing_is_left_of_it(
    proxy: ScriptedProxy, pair: Pair, commander: Commander
) -> None:
    prefill, decode = pair
    for number in range(3):
        proxy.submit_pair(prefill, decode, f"r{number}", prompt(40 + number), drawn(300))
    proxy.submit(decode, "whole", prompt(20), drawn(300))
    proxy.turn_until(lambda: len(frames(proxy, "r0")) > 3 and len(frames(proxy, "whole")) > 3)
    commander.tell("decode", NOW)
    proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    assert is_clean(decode)
    for answer in proxy.finish("r0", "r1", "r2", "whole"):
        (failure,) = answer.failures
        assert failure.moved and failure.sender == decode.incarnation and failure.status == 503
    # The proxy sends the other half of each.
    for number in range(3):
        proxy.cancel(prefill, f"r{number}")
    everyone_clean(proxy)


def test_a_drained_worker_computes_what_tries_it(proxy: ScriptedProxy, pair: Pair, commander: Commander) -> None:
    """The time for its requests has passed, and it stays drained."""
    commander.tell("decode", NOW)
    proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    proxy.submit(pair[1], "trial", prompt(20), drawn(30))
    (answer,) = proxy.finish("trial")
    assert len(answer.ids) == 30 and not answer.failures
    assert is_draining(proxy, pair[1]) and commander.listener.heard == [(1, True)]
    everyone_clean(proxy)


def test_a_prefill_worker_is_drained_when_its_blocks_were_fetched(proxy: ScriptedProxy, pair: Pair) -> None:
    prefill, decode = pair
    commander = Commander(prefill)
    proxy.workers.remove(decode)
    proxy.submit_pair(prefill, decode, "r", prompt(40), drawn(5))
    commander.tell("prefill", LATER)
    proxy.turn_until(lambda: is_draining(proxy, prefill) and bool(prefill.prefill.halves))
    assert not prefill.is_idle and not commander.listener.heard
    proxy.workers.append(decode)
    proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    assert not prefill.prefill.kv_sender.open
    proxy.finish("r")
    everyone_clean(proxy)
    commander.close()


def test_a_role_changes_between_requests_and_the_cache_stays(
    proxy: ScriptedProxy, pair: Pair, commander: Commander
) -> None:
    """The worker that decoded computes the next prompt for the one that computed prompts, using its own prefix
    cache."""
    prefill, decode = pair
    proxy.submit_pair(prefill, decode, "before", prompt(64), drawn(200), salt="same")
    proxy.submit(decode, "alone", prompt(64), drawn(9), salt="same")
    proxy.turn_until(lambda: len(frames(proxy, "before")) > 3 and proxy.answers["alone"].finished)
    commander.tell("prefill", None)
    proxy.turn_until(lambda: commander.is_obeyed(drained=False))
    assert proxy.duties[decode.incarnation].role == "prefill"
    assert not proxy.answers["before"].finished
    proxy.submit_pair(decode, prefill, "swapped", prompt(64), drawn(9), salt="same")
    alone, swapped, before = proxy.finish("alone", "swapped", "before")
    assert swapped.ids == alone.ids == before.ids[:9] and len(before.ids) == 200
    assert max(frame.cached_tokens or 0 for frame in swapped.frames) >= 48
    everyone_clean(proxy)


def test_who_is_told_to_go_gives_back_what_it_has(proxy: ScriptedProxy, pair: Pair) -> None:
    decode = pair[1]
    proxy.submit(decode, "r", prompt(20), drawn(300))
    proxy.turn_until(lambda: len(frames(proxy, "r")) > 3)
    decode.leave()
    (answer,) = proxy.finish("r")
    assert [failure.moved for failure in answer.failures] == [True]
    proxy.turn_until(lambda: decode.incarnation in proxy.goodbyes)
    assert not proxy.goodbyes[decode.incarnation].drained
    everyone_clean(proxy)


def test_only_who_drained_says_that_nothing_depends_on_it(
    proxy: ScriptedProxy, pair: Pair, commander: Commander
) -> None:
    commander.tell("decode", LATER)
    proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    pair[1].leave()
    proxy.turn_until(lambda: pair[1].incarnation in proxy.goodbyes)
    assert proxy.goodbyes[pair[1].incarnation].drained


@pytest.mark.parametrize("for_good", [True, False])
def test_who_leaves_says_whether_it_is_for_good(
    proxy: ScriptedProxy, pair: Pair, commander: Commander, for_good: bool
) -> None:
    """The last order counts."""
    for earlier in (not for_good, for_good):
        commander.tell("decode", LATER, for_good=earlier)
        proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    pair[1].leave()
    proxy.turn_until(lambda: pair[1].incarnation in proxy.goodbyes)
    assert proxy.goodbyes[pair[1].incarnation].for_good is for_good


def test_an_order_that_comes_with_the_signal_to_end_is_heard(
    proxy: ScriptedProxy, pair: Pair, commander: Commander
) -> None:
    commander.tell("decode", NOW, for_good=True)
    pair[1].leave()
    proxy.turn_until(lambda: pair[1].incarnation in proxy.goodbyes)
    assert proxy.goodbyes[pair[1].incarnation].for_good


def test_a_new_proxy_hears_what_the_last_one_knew(proxy: ScriptedProxy, pair: Pair, commander: Commander) -> None:
    commander.tell("prefill", NOW)
    proxy.turn_until(lambda: commander.is_obeyed(drained=True))
    proxy.hellos.clear()
    proxy.incarnation = "successor"
    pair[1].link.links[0].forget()
    proxy.turn_until(lambda: "decode:0" in proxy.hellos)
    assert (proxy.hellos["decode:0"].role, proxy.hellos["decode:0"].draining) == ("prefill", True)


def test_orders_come_whole_and_nonsense_is_no_order(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reading, writing = os.pipe()
    pipe = CommandPipe(reading, logging.getLogger("pontil.worker"))
    assert pipe.take() == []
    os.write(writing, b'{"kind": "ro')
    assert pipe.take() == [] and not pipe.closed
    os.write(writing, b'le"}\n[1]\nnonsense\n{"kind": "x"}\n')
    assert pipe.take() == [{"kind": "role"}, {"kind": "x"}]
    assert caplog.text.count("a line that is no command") == 2
    os.close(writing)
    assert pipe.take() == [] and pipe.closed and pipe.take() == []
    os.close(reading)
