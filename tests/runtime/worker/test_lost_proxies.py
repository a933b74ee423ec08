# SPDX-License-Identifier: Apache-2.0
"""A worker whose link to one of two proxies is cut without a word: the other one's requests go on, and it registers
again once the link is back."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from relay import BACK, THERE, Relay
from workers import greedy, open_worker, prompt

from pontil.runtime.config.worker_config import Deadlines
from pontil.runtime.wire.links.sockets import ControlServer, open_context
from pontil.runtime.wire.messages import Heartbeat, Hello, Message, StillHere, Submit, Tokens, Welcome

TURNS = 400_000
BRIEF = Deadlines(link_timeout=0.6)


class TwoProxies:
    """One worker of two scripted proxies, "a" behind a relay and "b"."""

    def __init__(self, model: Path, folder: Path) -> None:
        self.context = open_context(link_timeout=BRIEF.link_timeout)
        endpoints = ("tcp://127.0.0.1:*", f"ipc://{folder}/other")
        self.servers = {name: ControlServer(self.context, one) for name, one in zip("ab", endpoints, strict=True)}
        self.relay = Relay(("127.0.0.1", int(self.servers["a"].endpoint.rsplit(":", 1)[1])))
        self.worker = open_worker(
            model, folder, "mixed:0", "mixed", control=f"tcp://127.0.0.1:{self.relay.address[1]}",
            more_controls=(self.servers["b"].endpoint,), deadlines=BRIEF,
        )  # fmt: skip
        self.first, self.second = self.worker.link.links
        self.heard: dict[str, list[Message]] = {"a": [], "b": []}

    def turn_until(self, condition: Callable[[], object]) -> None:
        for _ in range(TURNS):
            self.worker.turn()
            for name, server in self.servers.items():
                for message in server.receive_all():
                    self.heard[name].append(message)
                    if isinstance(message, Hello):
                        server.send(Welcome(name, message.sender))
                    elif isinstance(message, Heartbeat):
                        server.send(StillHere(name, message.sender))
            if condition():
                return
        raise AssertionError("it did not come true")

    def submit(self, proxy: str, name: str, count: int) -> None:
        wire = greedy(count, ignore_eos=True).to_wire()
        assert self.servers[proxy].send(Submit(proxy, self.worker.incarnation, name, 0, prompt(20), wire))

    def tokens(self, proxy: str, name: str) -> int:
        frames = [one for one in self.heard[proxy] if isinstance(one, Tokens) and one.request_id == name]
        return sum(len(one.ids) for one in frames)

    def close(self) -> None:
        self.relay.held = frozenset()
        self.worker.close()
        for server in self.servers.values():
            server.close()
        self.context.term()
        self.relay.close()


@pytest.fixture
def two(model: Path, tmp_path: Path) -> Iterator[TwoProxies]:
    made = TwoProxies(model, tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize("held", [{THERE, BACK}, {THERE}, {BACK}], ids=["both", "there", "back"])
def test_a_proxy_that_is_cut_off_takes_only_its_own_requests_along(two: TwoProxies, held: set[str]) -> None:
    two.turn_until(lambda: two.worker.link.proxies == 2)
    two.submit("a", "ra", 400)
    two.submit("b", "rb", 400)
    two.turn_until(lambda: two.tokens("a", "ra") and two.tokens("b", "rb"))
    two.relay.held = frozenset(held)
    two.turn_until(lambda: two.first.proxy is None)
    assert "ra#0" not in two.worker.requests
    two.turn_until(lambda: two.tokens("b", "rb") == 400)
    two.submit("b", "later", 5)
    two.turn_until(lambda: two.tokens("b", "later") == 5)
    assert two.second.proxy == "b" and two.second.hello.registration == 0
    two.relay.held = frozenset()
    two.turn_until(lambda: two.first.proxy == "a")
    hello = [one for one in two.heard["a"] if isinstance(one, Hello)][-1]
    assert hello.sender == two.worker.incarnation and hello.registration > 0
    two.submit("a", "again", 5)
    two.turn_until(lambda: two.tokens("a", "again") == 5)


def test_what_a_proxy_gives_a_registration_that_has_ended_is_not_computed(two: TwoProxies) -> None:
    """A connection broke before the Welcome. The next Hello says that nothing is here, and the proxy's cancel may be
    lost with the next connection."""
    two.turn_until(lambda: two.worker.link.proxies == 2)
    two.first.forget()
    early = Submit("a", two.worker.incarnation, "early", 0, prompt(20), greedy(400, ignore_eos=True).to_wire())
    two.worker.hear(early, two.worker.now, two.first)
    assert not two.worker.requests
    two.turn_until(lambda: two.first.proxy == "a")
    two.submit("a", "again", 5)
    two.turn_until(lambda: two.tokens("a", "again") == 5)
