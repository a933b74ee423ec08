# SPDX-License-Identifier: Apache-2.0
"""A worker whose link to one of two proxies is cut without a word: the other one's requests go on, and it registers
again once the link is back."""

from collections.abc import Callable
from pathlib import Path

import pytest
from relay import BACK, THERE, Relay
from workers import greedy, open_worker, prompt

from pontil.runtime.config import Deadlines
from pontil.runtime.wire.messages import Heartbeat, Hello, Message, StillHere, Submit, Tokens, Welcome
from pontil.runtime.wire.sockets import ControlServer, open_context

TURNS = 400_000
BRIEF = Deadlines(link_timeout=0.6)


@pytest.mark.parametrize("held", [{THERE, BACK}, {THERE}, {BACK}], ids=["both", "there", "back"])
def test_a_proxy_that_is_cut_off_takes_only_its_own_requests_along(model: Path, tmp_path: Path, held: set[str]) -> None:
    context = open_context(link_timeout=BRIEF.link_timeout)
    endpoints = ("tcp://127.0.0.1:*", f"ipc://{tmp_path}/other")
    servers = {name: ControlServer(context, one) for name, one in zip("ab", endpoints, strict=True)}
    relay = Relay(("127.0.0.1", int(servers["a"].endpoint.rsplit(":", 1)[1])))
    worker = open_worker(
        model, tmp_path, "mixed:0", "mixed", control=f"tcp://127.0.0.1:{relay.address[1]}",
        more_controls=(servers["b"].endpoint,), deadlines=BRIEF,
    )  # fmt: skip
    heard: dict[str, list[Message]] = {"a": [], "b": []}

    def turn_until(condition: Callable[[], object]) -> None:
        for _ in range(TURNS):
            worker.turn()
            for name, server in servers.items():
                for message in server.receive_all():
                    heard[name].append(message)
                    if isinstance(message, Hello):
                        server.send(Welcome(name, message.sender, True))
                    elif isinstance(message, Heartbeat):
                        server.send(StillHere(name, message.sender))
            if condition():
                return
        raise AssertionError("it did not come true")

    def submit(proxy: str, name: str, count: int) -> None:
        wire = greedy(count, ignore_eos=True).to_wire()
        submitted = Submit(proxy, worker.incarnation, name, 0, prompt(20), wire, cache_salt=name)
        assert servers[proxy].send(submitted)

    def tokens(proxy: str, name: str) -> int:
        steps = [one for one in heard[proxy] if not isinstance(one, Hello | Heartbeat)]
        return sum(len(one.ids) for one in steps if isinstance(one, Tokens) and one.request_id == name)

    try:
        turn_until(lambda: worker.link.proxies == 2)
        for link in worker.link.links:
            link.takes_steps = False
        submit("a", "ra", 400)
        submit("b", "rb", 400)
        turn_until(lambda: tokens("a", "ra") and tokens("b", "rb"))
        relay.held = frozenset(held)
        turn_until(lambda: worker.link.links[0].proxy is None)
        assert "ra#0" not in worker.requests
        turn_until(lambda: tokens("b", "rb") == 400)
        submit("b", "later", 5)
        turn_until(lambda: tokens("b", "later") == 5)
        assert worker.link.links[1].hello.registration == 0
        relay.held = frozenset()
        turn_until(lambda: worker.link.links[0].proxy == "a")
        hello = [one for one in heard["a"] if isinstance(one, Hello)][-1]
        assert hello.sender == worker.incarnation and hello.registration > 0
        worker.link.links[0].takes_steps = False
        submit("a", "again", 5)
        turn_until(lambda: tokens("a", "again") == 5)
    finally:
        relay.held = frozenset()
        worker.close()
        for server in servers.values():
            server.close()
        context.term()
        relay.close()
