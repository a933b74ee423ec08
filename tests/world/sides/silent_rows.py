# SPDX-License-Identifier: Apache-2.0
"""Scenarios of networks that say nothing, over tcp: the world has them between its processes."""

from link_rows import came, events_until
from scenario import Facts, Scenario
from side import TO_CLIENT, TO_SERVER, Side

# Seconds of an attempt to connect that nobody answers, less what clocks differ.
LONG = 0.9
# Seconds of a silence that nobody notices.
SILENT = 0.2
# The messages that are sent in one.
WORDS = ["0", "1"]


def silent_link(side: Side, way: str) -> Facts:
    """Let nothing through in one direction, and see who notices; then let it through again."""
    link = side.open_link()
    link.silence(way)
    facts: Facts = {"sent": [link.client.do("send", "d", "lost"), link.server.do("send", "r", "w", "lost")]}
    events = events_until(side, link.client, lambda found: "DISCONNECTED" in found)
    facts["noticed by the client"] = "DISCONNECTED" in events
    facts["noticed by the server"] = side.until(lambda: link.server.do("send", "r", "w", "?") == "EHOSTUNREACH")
    link.mend()
    return facts | {"used again": side.until(lambda: link.server.do("send", "r", "w", "?") == "done")}


def order_after_a_silence(side: Side) -> Facts:
    """Messages that were on their way when the silence began come before those that were sent in it."""
    link = side.open_link()
    sent = link.client.do("send_many", "d", 3)
    link.silence(TO_SERVER)
    sent += [link.client.do("send", "d", word) for word in ("late", "later")].count("done")
    side.rest(SILENT)
    link.mend()
    return {"sent": sent, "comes": [word for _, word in came(side, link.server, "r", sent)]}


def end_in_a_silence(side: Side, ends: str) -> Facts:
    """Look for the words of an end that is gone, after the silence in which it sent them: its kernel has them."""

    def comes() -> bool:
        link, found = side.open_link(), list[str]()
        link.silence(TO_SERVER, TO_CLIENT)
        assert link.client.do("send_many", "d", len(WORDS)) == len(WORDS)
        side.rest(SILENT)
        if ends == "kill":
            link.client.kill()
        else:
            link.client.do("close", "d")
        link.mend()

        def has_ended() -> bool:
            said = link.server.do("send", "r", "w", "?")
            found.extend(word for _, word in link.server.do("receive", "r"))
            return bool(said == "EHOSTUNREACH")

        assert side.until(has_ended)
        return found == WORDS

    return {"comes": side.attempts(25, comes)}


def unanswered_address(side: Side) -> Facts:
    client = side.start()
    address, began = side.unanswered_address(client), side.now()
    client.do("connect", "d", address, "w", wide=True)
    events = events_until(side, client, lambda found: len(found) >= 2)
    return {"events": events[:2], "takes its time": side.now() - began >= LONG}


NOTICED = {
    "sent": ["done", "done"], "noticed by the client": True, "noticed by the server": True, "used again": True,
}  # fmt: skip
LAST_WORDS = {"comes": True}
SCENARIOS = (
    Scenario("nothing-comes-to-a-server", lambda side: silent_link(side, TO_SERVER), NOTICED),
    Scenario("nothing-comes-to-a-client", lambda side: silent_link(side, TO_CLIENT), NOTICED),
    Scenario("order-after-a-silence", order_after_a_silence, {"sent": 5, "comes": ["0", "1", "2", "late", "later"]}),
    Scenario("closed-in-a-silence", lambda side: end_in_a_silence(side, "close"), LAST_WORDS),
    Scenario("killed-in-a-silence", lambda side: end_in_a_silence(side, "kill"), LAST_WORDS),
    Scenario("unanswered-address", unanswered_address, {
        "events": ["CLOSED", "CONNECT_RETRIED 50"], "takes its time": True,
    }),
)  # fmt: skip
