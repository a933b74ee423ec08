# SPDX-License-Identifier: Apache-2.0
"""Scenarios of keys between hosts (CURVE): the product's contexts with and without them, over tcp."""

from functools import partial

from link_rows import came, events_until
from scenario import Facts, Scenario
from side import Side, SideProcess

OURS, OTHERS = "01" * 32, "02" * 32
# Events of a refusal for good, by which libzmq tries no more, and seconds in which nothing more is to happen.
FOR_GOOD = (["HANDSHAKE_FAILED_AUTH"], ["HANDSHAKE_FAILED_PROTOCOL"])
QUIET = 0.2


def keeper(side: Side, secret: str | None = OURS, own: str | None = None) -> SideProcess:
    """Return a process with the keys of this secret, of which it may show its `own`."""
    made = side.start()
    if secret is not None:
        made.do("hold_keys", secret, own or secret)
    return made


def right_keys(side: Side) -> Facts:
    server, client = keeper(side), keeper(side)
    endpoint = server.do("serve", "r", "tcp://127.0.0.1:*")
    client.do("connect", "d", endpoint, "w", wide=True)
    client.do("send", "d", "hello")
    heard = came(side, server, "r", 1)
    events = events_until(side, client, lambda found: "HANDSHAKE_SUCCEEDED" in found)
    answered = server.do("send", "r", "w", "answer")
    return {"came": heard, "events": events, "answered": answered, "answer": came(side, client, "d", 1)}


def refused_for_good(side: Side, server_secret: str | None, secret: str | None, own: str | None = None) -> Facts:
    """A stranger says something to a server that has a friend under the same id."""
    server, friend = keeper(side, server_secret), keeper(side, server_secret)
    stranger = keeper(side, secret, own)
    endpoint = server.do("serve", "r", "tcp://127.0.0.1:*")
    friend.do("connect", "d", endpoint, "w")
    friend.do("send", "d", "hello")
    came(side, server, "r", 1)
    stranger.do("connect", "d", endpoint, "w", wide=True)
    stranger.do("send", "d", "let me in")
    events = events_until(side, stranger, lambda found: found[-2:-1] in FOR_GOOD)
    side.rest(QUIET)
    facts = {"it hears": events[-3:], "then": stranger.do("events", "d")}
    # A refused DEALER takes more words as long as it has not noticed; in both cases they go nowhere.
    stranger.do("send", "d", "more")
    friend.do("send", "d", "I am still here")
    server.do("send", "r", "w", "so am I")
    return facts | {
        "to the friend": came(side, friend, "d", 1),
        "came": came(side, server, "r", 1),
        "rejected": server.do("rejected"),
    }


def keys_of_others(side: Side) -> Facts:
    server, stranger = keeper(side), keeper(side, OTHERS)
    endpoint = server.do("serve", "r", "tcp://127.0.0.1:*")
    stranger.do("connect", "d", endpoint, "w", wide=True)
    stranger.do("send", "d", "let me in")
    events = events_until(side, stranger, lambda found: len(found) >= 8)
    server.do("close", "r")
    rejected = server.do("rejected")
    server.do("hold_keys", OTHERS, OTHERS)
    # A closed socket keeps its address for a moment.
    side.until(lambda: server.do("serve", "r", endpoint) == endpoint)
    return {"events": events[:8], "rejected": rejected, "came once they are the same": came(side, server, "r", 1)}


REFUSED = ["CONNECTED", "HANDSHAKE_FAILED_NO_DETAIL", "DISCONNECTED", "CONNECT_RETRIED 50"]
NOT_HEARD = {
    "then": [], "to the friend": [["so am I"]], "came": [["w", "I am still here"]],
}  # fmt: skip
OTHER_MECHANISM = ["CONNECTED", "HANDSHAKE_FAILED_PROTOCOL", "DISCONNECTED"]
SCENARIOS = (
    Scenario("right-keys", right_keys, {
        "came": [["w", "hello"]], "events": ["CONNECTED", "HANDSHAKE_SUCCEEDED"], "answered": "done",
        "answer": [["answer"]],
    }),
    Scenario("keys-of-others", keys_of_others, {
        "events": 2 * REFUSED, "rejected": 0, "came once they are the same": [["w", "let me in"]],
    }),
    Scenario("stranger-with-the-servers-key", partial(refused_for_good, server_secret=OURS, secret=OURS, own=OTHERS), {
        "it hears": ["CONNECTED", "HANDSHAKE_FAILED_AUTH", "DISCONNECTED"], "rejected": 1, **NOT_HEARD,
    }),
    Scenario("no-keys-for-a-server-with-keys", partial(refused_for_good, server_secret=OURS, secret=None), {
        "it hears": OTHER_MECHANISM, "rejected": 0, **NOT_HEARD,
    }),
    Scenario("keys-for-a-server-without", partial(refused_for_good, server_secret=None, secret=OURS), {
        "it hears": OTHER_MECHANISM, "rejected": 0, **NOT_HEARD,
    }),
)  # fmt: skip
