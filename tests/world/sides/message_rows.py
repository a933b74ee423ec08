# SPDX-License-Identifier: Apache-2.0
"""Scenarios of messages: what takes them, what loses them, in which order they are read, and what tells of them."""

from link_rows import QUIET, Pair, came
from scenario import Facts, Scenario
from side import Side, SideProcess

# A queue's room, and more messages than both ends of a connection and the kernel between them hold then.
ROOM, TOO_MANY = 256, 20_000
# Messages, of so many bytes, that are more than the kernel takes for one that does not read.
MANY, SIZE = 4000, 2000


def sent_until_refused(side: Side, process: SideProcess, name: str, *head: str) -> int:
    """Send until nothing more is taken, and return how many messages were."""
    taken = 0
    while taken < TOO_MANY and (more := process.do("send_many", name, ROOM, *head, size=SIZE)):
        taken += more
        side.rest(QUIET / 5)
    return taken


def unconnected_dealer(side: Side) -> Facts:
    client, server = side.start(), side.start()
    client.do("connect", "d", side.ipc("r"), "w")
    taken = client.do("send_many", "d", 10_000)
    server.do("serve", "r", side.ipc("r"))
    found = came(side, server, "r", taken)
    return {"taken": taken, "in order": [int(number) for _, number in found] == list(range(taken))}


def peer_that_does_not_read(side: Side) -> Facts:
    pair = Pair(side, ROOM)
    to_server = sent_until_refused(side, pair.client, "d")
    to_client = sent_until_refused(side, pair.server, "r", "w")
    full = pair.server.do("send", "r", "w", "one more")
    everything = len(came(side, pair.server, "r", to_server)) == to_server
    return {
        "a DEALER's are refused": ROOM - 1 <= to_server < TOO_MANY,
        "a ROUTER's are refused": ROOM - 1 <= to_client < TOO_MANY,
        "by": full,
        "what was taken comes": everything,
    }


def sent_to_the_dead(side: Side) -> Facts:
    """A ROUTER is not told: what it sends before it has noticed is lost without a word."""
    pair = Pair(side)
    pair.client.kill()
    said = list[str]()

    def is_refused() -> bool:
        said.append(pair.server.do("send", "r", "w", "hello"))
        return said[-1] != "done"

    side.until(is_refused)
    return {"at last": said[-1], "before": set(said[:-1]) <= {"done"}}


def sent_to_a_server_that_dies(side: Side) -> Facts:
    pair = Pair(side)
    pair.client.do("events", "d")
    pair.server.stop()
    taken = pair.client.do("send_many", "d", 3)
    side.rest(QUIET)
    pair.server.kill()
    side.until(lambda: "DISCONNECTED" in pair.client.do("events", "d"))
    later = pair.client.do("send", "d", "later")
    return {"taken": taken, "later": later, "comes to the next server": came(side, pair.succeed(), "r", 1)}


def order(side: Side) -> Facts:
    """Messages of one connection keep their order; of several, one of each is read in turn."""
    pair, other = Pair(side), side.start()
    pair.join(other, "x", "hello")

    def in_turn() -> bool:
        pair.client.do("send_many", "d", 3)
        side.rest(QUIET)
        other.do("send_many", "d", 3)
        side.rest(QUIET)
        found = came(side, pair.server, "r", 6)
        assert [word for one, word in found if one == "w"] == ["0", "1", "2"]
        return [one for one, _ in found] in (["w", "x"] * 3, ["x", "w"] * 3)

    taken = pair.client.do("send_many", "d", MANY)
    found = [int(word) for _, word in came(side, pair.server, "r", taken)]
    return {"within a connection": found == list(range(taken)), "connections in turn": side.attempts(25, in_turn)}


def edges(side: Side) -> Facts:
    """The descriptor of a ROUTER shows an edge: once for all that comes until everything was read. Calls consume it."""
    pair = Pair(side)
    server, client = pair.server, pair.client
    side.rest(QUIET)
    server.do("receive", "r")
    facts = {"at rest": server.do("edge", "r")}
    client.do("send", "d", "1")
    facts["a message"] = side.until(lambda: bool(server.do("edge", "r")))
    facts["looked at"] = [server.do("readable", "r"), server.do("edge", "r")]
    client.do("send", "d", "2")
    side.rest(QUIET)
    facts["one more, before all is read"] = server.do("edge", "r")
    came(side, server, "r", 2)
    side.rest(QUIET)
    client.do("send", "d", "3")
    facts["a message after all was read"] = side.until(lambda: bool(server.do("edge", "r")))
    side.rest(QUIET)
    server.do("send", "r", "w", "answer")
    facts["after a send"] = [server.do("edge", "r"), server.do("readable", "r")]
    came(side, server, "r", 1)
    side.rest(QUIET)
    other = side.start()
    other.do("connect", "d", pair.endpoint, "x")
    facts["a connection"] = side.until(lambda: bool(server.do("edge", "r")))
    return facts


def closed_with_linger(side: Side) -> Facts:
    pair, client = Pair(side), side.start()
    taken = pair.client.do("send_many", "d", MANY, size=SIZE)
    pair.client.do("close", "d", linger=20.0)
    everything = len(came(side, pair.server, "r", taken)) == taken
    client.do("connect", "d", side.ipc("later"), "w")
    client.do("send", "d", "hello")
    client.do("close", "d", linger=20.0)
    server = side.start()
    server.do("serve", "r", side.ipc("later"))
    return {"all comes": everything, "of one that is not connected": came(side, server, "r", 1)}


def end_of_a_sender(side: Side, ends: str) -> Facts:
    """One that closes without linger, or dies: of what it sent the first part comes, and then its end."""
    shares = set[str]()

    def loses_a_part() -> bool:
        pair = Pair(side)
        pair.server.stop()
        taken = pair.client.do("send_many", "d", MANY, size=SIZE)
        if ends == "kill":
            pair.client.kill()
        else:
            pair.client.do("close", "d")
        pair.server.resume()
        found = list[int]()

        def has_ended() -> bool:
            said = pair.server.do("send", "r", "w", "?")
            found.extend(int(word) for _, word in pair.server.do("receive", "r"))
            return bool(said == "EHOSTUNREACH")

        assert side.until(has_ended)
        shares.add("the first part" if found == list(range(len(found))) else "parts")
        return 0 < len(found) < int(taken)

    return {"a part may be lost": side.attempts(25, loses_a_part), "comes": sorted(shares)}


FIRST_PART = {"a part may be lost": True, "comes": ["the first part"]}
SCENARIOS = (
    Scenario("unconnected-dealer", unconnected_dealer, {"taken": 8192, "in order": True}),
    Scenario("peer-that-does-not-read", peer_that_does_not_read, {
        "a DEALER's are refused": True, "a ROUTER's are refused": True, "by": "EAGAIN", "what was taken comes": True,
    }),
    Scenario("sent-to-the-dead", sent_to_the_dead, {"at last": "EHOSTUNREACH", "before": True}),
    Scenario("sent-to-a-server-that-dies", sent_to_a_server_that_dies, {
        "taken": 3, "later": "done", "comes to the next server": [["w", "later"]],
    }),
    Scenario("order", order, {"within a connection": True, "connections in turn": True}),
    Scenario("edges", edges, {
        "at rest": False, "a message": True, "looked at": [True, False], "one more, before all is read": False,
        "a message after all was read": True, "after a send": [False, True], "a connection": True,
    }, {"a connection": False}),
    Scenario("linger", closed_with_linger, {"all comes": True, "of one that is not connected": [["w", "hello"]]}, {
        "of one that is not connected": [],
    }),
    Scenario("closed-at-once", lambda side: end_of_a_sender(side, "close"), FIRST_PART),
    Scenario("killed-sender", lambda side: end_of_a_sender(side, "kill"), FIRST_PART),
)  # fmt: skip
