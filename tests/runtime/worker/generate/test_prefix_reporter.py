# SPDX-License-Identifier: Apache-2.0
"""A worker's reports of its prefix cache: a proxy that follows them knows what the index knows."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic

import pytest
from workers import PromptWorker, ScriptedProxy, everyone_clean, greedy, open_worker, prompt, told

from pontil.runtime.cache import prefix_journal
from pontil.runtime.cache.prefix import full_keys
from pontil.runtime.cache.prefix_journal import PrefixJournal
from pontil.runtime.proxy.routing.held_prefixes import short_key
from pontil.runtime.wire.messages import Message, PrefixRequest, StillHere, Submit
from pontil.runtime.worker.generate import prefix_reporter
from pontil.runtime.worker.generate.load_gauge import uncomputed
from pontil.runtime.worker.links.proxy_link import HELLO_AGAIN


def indexed(worker: PromptWorker) -> set[int]:
    return {short_key(key) for key in worker.machine.pool.index.blocks}


def in_step(proxy: ScriptedProxy, *workers: PromptWorker) -> None:
    """Let the proxy hear everything that the workers have to tell."""
    proxy.turn_until(lambda: all(told(proxy, worker) == indexed(worker) for worker in workers))


def test_both_workers_of_a_pair_tell_what_they_have(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    prefill, decode = pair
    text = prompt(50)
    proxy.submit_pair(prefill, decode, "r", text, greedy(40, ignore_eos=True), salt="s")
    (answer,) = proxy.finish("r")
    everyone_clean(proxy)
    in_step(proxy, prefill, decode)
    asked = {short_key(key) for key in full_keys(text, "s", 16)}
    assert len(asked) == 3 and asked <= told(proxy, prefill) and asked <= told(proxy, decode)
    whole = {short_key(key) for key in full_keys((text + answer.ids)[:-1], "s", 16)}
    proxy.turn_until(lambda: whole <= told(proxy, decode))
    assert not whole <= told(proxy, prefill), "the answer is with the decode worker"


def test_the_end_of_an_answer_is_told_after_its_blocks(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    """A client that has its answer may send the next turn at once."""
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(worker)
    text, order = prompt(40), list[str]()
    (link,) = worker.link.links
    send = link.send

    def sending(message: Message) -> None:
        order.append(type(message).__name__)
        send(message)

    link.send = sending  # type: ignore[method-assign]
    proxy.submit(worker, "r", text, greedy(1), salt="s")
    proxy.finish("r")
    sent = [name for name in order if name in ("PrefixDelta", "Tokens", "Step")]
    assert sent.index("PrefixDelta") < len(sent) - 1 - sent[::-1].index("Tokens")
    everyone_clean(proxy)


def test_evictions_are_told_in_small_messages(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix_reporter, "MOST_TOLD", 3)
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", kv_cache_memory=1 << 19)
    proxy.admit(worker)
    for number in range(12):
        proxy.submit(worker, f"r{number}", prompt(150), greedy(2), salt=str(number))
    proxy.finish(*(f"r{number}" for number in range(12)))
    in_step(proxy, worker)
    sent = proxy.prefixes[worker.incarnation]
    assert any(message.removed for message in sent), "the pool is too small for all of them"
    assert all(len(message.added) + len(message.removed) <= 3 * 8 for message in sent)
    everyone_clean(proxy)


def test_who_has_missed_a_message_is_told_everything_anew(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    worker, _ = pair
    proxy.submit(worker, "r", prompt(50), greedy(2), salt="s")
    proxy.finish("r")
    in_step(proxy, worker)
    before = indexed(worker)
    assert before
    proxy.prefixes.clear()
    proxy.server.send(PrefixRequest(proxy.incarnation, worker.incarnation))
    proxy.turn_until(lambda: worker.incarnation in proxy.prefixes)
    assert proxy.prefixes[worker.incarnation][0].number == 0
    in_step(proxy, worker)
    worker.machine.scheduler.prefix.clear()
    in_step(proxy, worker)
    assert not told(proxy, worker)


def test_a_proxy_that_does_not_ask_is_told_nothing(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    proxy.wants_prefixes = False
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(worker)
    proxy.submit(worker, "r", prompt(50), greedy(2))
    proxy.finish("r")
    everyone_clean(proxy)
    assert not proxy.prefixes and not worker.machine.pool.index.journals


def test_while_the_proxy_takes_nothing_changes_wait(
    proxy: ScriptedProxy, pair: tuple[PromptWorker, PromptWorker]
) -> None:
    worker, _ = pair
    in_step(proxy, worker)
    proxy.submit(worker, "r", prompt(50), greedy(2), salt="s")
    proxy.turn_until(lambda: bool(worker.requests))
    proxy.finish("r")
    in_step(proxy, worker)
    heard = len(proxy.prefixes[worker.incarnation])
    link = worker.link.links[0]
    link.outbox.append(PrefixRequest("nobody", "nobody"))
    index = worker.machine.pool.index
    index.add(b"k" * 16, 10**6)
    worker.worker.leases.reporters.tell()
    assert len(index.journals[0].changes) == 1 and worker.link.congested
    link.outbox.clear()
    in_step(proxy, worker)
    assert len(proxy.prefixes[worker.incarnation]) > heard
    index.forget(10**6)
    in_step(proxy, worker)


class Proxies:
    """Two proxies of one worker."""

    def __init__(self, first: ScriptedProxy, second: ScriptedProxy, worker: PromptWorker) -> None:
        self.first, self.second, self.worker = first, second, worker
        first.workers.append(worker)
        for one in (first, second):
            one.underway.count(worker.link.sockets)
        self.turn_until(lambda: worker.link.proxies == 2)

    def turn_until(self, condition: Callable[[], bool]) -> None:
        def heard() -> bool:
            self.second.hear_all()
            return condition()

        self.first.turn_until(heard)

    def in_step(self) -> None:
        """Let both hear everything that the worker has to tell."""
        both = self.first, self.second
        self.turn_until(lambda: all(told(one, self.worker) == indexed(self.worker) for one in both))

    def compute(self, name: str) -> None:
        self.first.submit(self.worker, name, prompt(50), greedy(2), salt=name)
        self.turn_until(lambda: name in self.first.answers and self.first.answers[name].finished)

    def begun_anew(self, proxy: ScriptedProxy) -> int:
        return [message.number for message in proxy.prefixes[self.worker.incarnation]].count(0)


@pytest.fixture
def proxies(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> Iterator[Proxies]:
    folder = tmp_path / "second"
    folder.mkdir()
    second = ScriptedProxy(folder, "second")
    try:
        yield Proxies(proxy, second, open_worker(model, tmp_path, "mixed:0", "mixed",
                                                 more_controls=(second.server.endpoint,)))  # fmt: skip
    finally:
        second.close()


def test_each_of_two_proxies_follows_by_itself(proxies: Proxies) -> None:
    """One misses a message, and then another process takes its place: nobody else is told anew."""
    worker, second = proxies.worker, proxies.second
    proxies.compute("a")
    proxies.in_step()
    assert indexed(worker) and proxies.begun_anew(second) == 1
    second.prefixes.clear()
    assert second.server.send(PrefixRequest(second.incarnation, worker.incarnation))
    proxies.turn_until(lambda: bool(second.prefixes))
    proxies.compute("b")
    proxies.in_step()
    assert second.prefixes[worker.incarnation][0].number == 0 and proxies.begun_anew(second) == 1
    second.incarnation = "third"
    second.prefixes.clear()
    assert second.server.send(StillHere("third", worker.incarnation))
    proxies.turn_until(lambda: worker.link.links[1].proxy == "third" and bool(second.prefixes))
    proxies.compute("c")
    proxies.in_step()
    assert proxies.begun_anew(second) == proxies.begun_anew(proxies.first) == 1
    assert len(worker.machine.pool.index.journals) == 2


def test_a_proxy_that_is_gone_leaves_no_journal_and_stops_nobody(
    proxies: Proxies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket may be full of greetings, as nobody takes them."""
    worker, link = proxies.worker, proxies.worker.link.links[1]
    proxies.in_step()
    monkeypatch.setattr(link.socket, "send", lambda message: False)
    link.forget()
    for turn in range(5):
        link.tick(lambda: worker.load(link), monotonic() + turn * (HELLO_AGAIN + 0.1))
    assert len(link.outbox) == 1 and not worker.link.congested
    proxies.first.submit(worker, "a", prompt(50), greedy(2), salt="a")
    proxies.first.finish("a")
    assert len(worker.machine.pool.index.journals) == 1
    in_step(proxies.first, worker)


def test_a_journal_that_nobody_reads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_journal, "MOST_CHANGES", 4)
    journal = PrefixJournal()
    for number in range(8):
        journal.add(bytes([number]) * 16)
    assert journal.is_void and not journal.changes


def test_another_proxys_prompt_counts_by_what_is_missing_here(proxies: Proxies) -> None:
    """A cached beginning is not computed, and what another worker has kept is not either."""
    worker, second = proxies.worker, proxies.second
    proxies.compute("a")
    submit = Submit(
        second.incarnation, worker.incarnation, "r", 0, prompt(48) + [9, 9], greedy(2).to_wire(), cache_salt="a"
    )
    worker.hear(submit, worker.now, worker.link.links[1])
    waiting = worker.requests["r#0"]
    assert waiting.sequence.computed == 0
    others = worker.load(worker.link.links[0]).others
    assert others is not None and (others["in_flight"], others["uncomputed"]) == (1, 2)
    waiting.submit = replace(submit, phase="claim")
    assert uncomputed(waiting, worker.machine.scheduler.prefix) == 0
    waiting.submit = submit
    proxies.turn_until(lambda: "r" in second.answers and second.answers["r"].finished)
