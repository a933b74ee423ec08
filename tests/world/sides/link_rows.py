# SPDX-License-Identifier: Apache-2.0
"""Scenarios of connections: how they are made, taken over and lost."""

from collections.abc import Callable
from typing import Any

from scenario import Facts, Scenario
from side import Side, SideProcess

from pontil.runtime.wire.links.sockets import HIGH_WATER_MARK

# Seconds in which nothing is to happen.
QUIET = 0.05


class Pair:
    """A ROUTER `server` with the socket `r`, and a DEALER `client` with the socket `d`, each in a process of its own,
    connected."""

    def __init__(self, side: Side, room: int = HIGH_WATER_MARK) -> None:
        self.side, self.room = side, room
        self.server, self.client = side.start(), side.start()
        self.endpoint = self.server.do("serve", "r", side.ipc(f"router-{side.now()}"), room=room)
        self.join(self.client, "w", "hello")

    def join(self, client: SideProcess, identity: str, word: str) -> None:
        """Connect a DEALER, whose first word the server reads."""
        client.do("connect", "d", self.endpoint, identity, wide=True, room=self.room)
        client.do("send", "d", word)
        assert came(self.side, self.server, "r", 1) == [[identity, word]]

    def succeed(self) -> SideProcess:
        """Return another server, at the same place."""
        made = self.side.start()
        made.do("serve", "r", self.endpoint)
        return made


def came(side: Side, process: SideProcess, name: str, count: int) -> list[Any]:
    """Return so many messages, or those that come in time."""
    found = list[Any]()

    def look() -> bool:
        found.extend(process.do("receive", name))
        return len(found) >= count

    side.until(look)
    return found


def events_until(side: Side, client: SideProcess, is_last: Callable[[list[str]], bool]) -> list[str]:
    found = list[str]()

    def look() -> bool:
        found.extend(client.do("events", "d"))
        return is_last(found)

    side.until(look)
    return found


def reconnect_pauses(side: Side) -> Facts:
    client = side.start()
    client.do("connect", "d", side.ipc("nobody"), "w", wide=True)
    events = events_until(side, client, lambda found: len(found) >= 12)
    return {"events": events[:12]}


def connection_events(side: Side) -> Facts:
    pair = Pair(side)
    narrow = side.start()
    narrow.do("connect", "d", pair.endpoint, "x")
    joined = events_until(side, pair.client, lambda found: "HANDSHAKE_SUCCEEDED" in found)
    events_until(side, narrow, lambda found: "HANDSHAKE_SUCCEEDED" in found)
    pair.server.kill()
    lost = events_until(side, pair.client, lambda found: len(found) >= 4)
    told = events_until(side, narrow, lambda found: len(found) >= 2)
    pair.succeed()
    again = events_until(side, pair.client, lambda found: "HANDSHAKE_SUCCEEDED" in found)
    return {"joined": joined, "lost": lost[:4], "lost, by the product's mask": told[:2], "again": again[-2:]}


def bind_over_ipc(side: Side) -> Facts:
    pair = Pair(side)
    other, late = side.start(), side.start()
    bound = other.do("serve", "r", pair.endpoint) == pair.endpoint
    late.do("connect", "d", pair.endpoint, "late")
    late.do("send", "d", "to whom")
    pair.client.do("send", "d", "more")
    new, old = came(side, other, "r", 1), came(side, pair.server, "r", 1)
    pair.server.do("close", "r")
    later = side.start()
    later.do("connect", "d", pair.endpoint, "later")
    later.do("send", "d", "and now")
    return {"bound": bound, "new": new, "old": old, "after the old one has closed": later_words(side, other)}


def later_words(side: Side, server: SideProcess) -> bool:
    """Return whether the one that came later is heard; others may connect again before it."""
    return side.until(lambda: ["later", "and now"] in server.do("receive", "r"))


def bind_over_tcp(side: Side) -> Facts:
    server, other = side.start(), side.start()
    endpoint = server.do("serve", "r", "tcp://127.0.0.1:*")
    said = other.do("serve", "r", endpoint)
    server.kill()
    return {"in use": "Address already in use" in said, "free at once": other.do("serve", "r", endpoint) == endpoint}


def stopped_server(side: Side) -> Facts:
    server, client = side.start(), side.start()
    endpoint = server.do("serve", "r", side.ipc("r"))
    server.stop()
    client.do("connect", "d", endpoint, "w", wide=True)
    sent = client.do("send", "d", "hello")
    side.rest(QUIET)
    before = events_until(side, client, lambda found: bool(found))
    server.resume()
    after = events_until(side, client, lambda found: bool(found))
    return {"sent": sent, "before": before, "after": after, "came": came(side, server, "r", 1)}


def stopped_server_dies(side: Side) -> Facts:
    server, client = side.start(), side.start()
    endpoint = server.do("serve", "r", side.ipc("r"))
    server.stop()
    client.do("connect", "d", endpoint, "w", wide=True)
    client.do("send", "d", "hello")
    events_until(side, client, lambda found: "CONNECTED" in found)
    server.kill()
    events = events_until(side, client, lambda found: len(found) >= 3)
    other = side.start()
    other.do("serve", "r", endpoint)
    return {"events": events[:3], "came": came(side, other, "r", 1)}


def stopped_client(side: Side) -> Facts:
    """libzmq's thread stops with its process: nothing connects again, and nothing is told."""
    pair = Pair(side)
    pair.client.stop()
    pair.server.kill()
    other = pair.succeed()
    side.rest(QUIET + 0.1)
    before = other.do("send", "r", "w", "are you there")
    pair.client.resume()
    found = side.until(lambda: other.do("send", "r", "w", "are you there") == "done")
    return {"while it is stopped": before, "connects when it runs": found}


def handover(side: Side) -> Facts:
    """A second DEALER with the id of the first, which lives on."""
    pair = Pair(side)
    events_until(side, pair.client, lambda found: "HANDSHAKE_SUCCEEDED" in found)
    other = side.start()
    pair.join(other, "w", "new")
    sent = pair.client.do("send", "d", "into the void")
    side.rest(QUIET)
    answered = pair.server.do("send", "r", "w", "answer")
    came_to_new = came(side, other, "d", 1)
    other.do("send", "d", "last")
    return {
        "the old one's events": pair.client.do("events", "d"),
        "it sends": sent,
        "answered": answered,
        "to the new one": came_to_new,
        "to the old one": pair.client.do("receive", "d"),
        "came": came(side, pair.server, "r", 1),
        "unread messages of the old one may be lost": side.attempts(5, lambda: loses_unread(side)),
    }


def loses_unread(side: Side) -> bool:
    pair, other = Pair(side), side.start()
    for number in range(3):
        pair.client.do("send", "d", f"unread {number}")
    side.until(lambda: bool(pair.server.do("edge", "r")))
    other.do("connect", "d", pair.endpoint, "w", wide=True)
    other.do("send", "d", "new")
    events_until(side, other, lambda found: "HANDSHAKE_SUCCEEDED" in found)
    side.rest(QUIET)
    return came(side, pair.server, "r", 1) == [["w", "new"]]


def handover_after_death(side: Side) -> Facts:
    pair, other = Pair(side), side.start()
    pair.client.do("send", "d", "unread")
    side.until(lambda: bool(pair.server.do("edge", "r")))
    pair.client.kill()
    gone = side.until(lambda: pair.server.do("send", "r", "w", "?") == "EHOSTUNREACH")
    other.do("connect", "d", pair.endpoint, "w", wide=True)
    other.do("send", "d", "new")
    return {"gone": gone, "came": came(side, pair.server, "r", 2)}


SEEN_AGAIN = ["CONNECTED", "HANDSHAKE_SUCCEEDED"]
PAUSES = [part for pause in (50, 100, 200, 400, 500, 500) for part in ("CLOSED", f"CONNECT_RETRIED {pause}")]
SCENARIOS = (
    Scenario("reconnect-pauses", reconnect_pauses, {"events": PAUSES}),
    Scenario("connection-events", connection_events, {
        "joined": SEEN_AGAIN, "lost": ["DISCONNECTED", "CONNECT_RETRIED 50", "CLOSED", "CONNECT_RETRIED 100"],
        "lost, by the product's mask": ["DISCONNECTED", "CLOSED"], "again": SEEN_AGAIN,
    }),
    Scenario("bind-over-ipc", bind_over_ipc, {
        "bound": True, "new": [["late", "to whom"]], "old": [["w", "more"]], "after the old one has closed": True,
    }),
    Scenario("bind-over-tcp", bind_over_tcp, {"in use": True, "free at once": True}),
    Scenario("stopped-server", stopped_server, {
        "sent": "done", "before": ["CONNECTED"], "after": ["HANDSHAKE_SUCCEEDED"], "came": [["w", "hello"]],
    }),
    Scenario("stopped-server-dies", stopped_server_dies, {
        "events": ["HANDSHAKE_FAILED_NO_DETAIL", "DISCONNECTED", "CONNECT_RETRIED 50"], "came": [["w", "hello"]],
    }),
    Scenario("stopped-client", stopped_client, {"while it is stopped": "EHOSTUNREACH", "connects when it runs": True}),
    Scenario("handover", handover, {
        "the old one's events": [], "it sends": "done", "answered": "done", "to the new one": [["answer"]],
        "to the old one": [], "came": [["w", "last"]], "unread messages of the old one may be lost": True,
    }),
    Scenario("handover-after-death", handover_after_death, {"gone": True, "came": [["w", "unread"], ["w", "new"]]}),
)  # fmt: skip
