# SPDX-License-Identifier: Apache-2.0
"""Messages that sockets do not take are kept in order, and for a limited time."""

from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.wire.links.outbox import MOST, PATIENCE, Outbox
from pontil.runtime.wire.messages import Cancel, Message


class Sockets:
    """Sockets that take as many messages for each peer as they have room for."""

    def __init__(self) -> None:
        self.room = {"a": 0, "b": 0}
        self.taken: dict[str, list[Message]] = {"a": [], "b": []}
        self.outbox = Outbox(self.send)

    def send(self, peer: str, message: Message) -> bool:
        if not self.room[peer]:
            return False
        self.room[peer] -= 1
        self.taken[peer].append(message)
        return True


def message(number: int) -> Message:
    return Cancel("s", "r", str(number), 0)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from(["post", "flush", "room"]))))
def test_each_peers_messages_arrive_in_order_whatever_the_other_does(events: list[tuple[str, str]]) -> None:  # B12
    sockets, posted = Sockets(), {"a": list[Message](), "b": list[Message]()}
    for number, (peer, event) in enumerate(events):
        if event == "post":
            posted[peer].append(message(number))
            sockets.outbox.post(peer, posted[peer][-1])
        elif event == "flush":
            assert not sockets.outbox.flush(0.0)
        else:
            sockets.room[peer] += 2
    waiting = sum(len(posted[peer]) - len(sockets.taken[peer]) for peer in "ab")
    assert waiting == len(sockets.outbox)
    sockets.room = {"a": len(events), "b": len(events)}
    assert not sockets.outbox.flush(0.0) and not len(sockets.outbox)
    assert sockets.taken == posted


def test_a_peer_that_takes_nothing_is_given_up_after_a_time_and_told_apart() -> None:  # C14
    sockets = Sockets()
    sockets.outbox.post("a", message(1))
    sockets.outbox.post("b", message(2))
    assert not sockets.outbox.flush(100.0), "the time counts from the first look"
    sockets.outbox.post("a", message(3))
    sockets.outbox.drop("b")
    assert not sockets.outbox.flush(100.0 + PATIENCE - 0.1)
    assert sockets.outbox.flush(100.0 + PATIENCE) == {"a": [message(1), message(3)]}
    assert not len(sockets.outbox) and not sockets.outbox.flush(200.0)


def test_a_peer_that_takes_some_has_time_for_the_rest() -> None:
    sockets = Sockets()
    for number in range(3):
        sockets.outbox.post("a", message(number))
    assert not sockets.outbox.flush(0.0)
    sockets.room["a"] = 1
    assert not sockets.outbox.flush(PATIENCE)
    assert not sockets.outbox.flush(2 * PATIENCE - 0.1)
    assert sockets.outbox.flush(2 * PATIENCE) == {"a": [message(1), message(2)]}


def test_no_peer_collects_messages_without_end() -> None:
    sockets = Sockets()
    for number in range(MOST):
        sockets.outbox.post("a", message(number))
    assert not sockets.outbox.flush(0.0)
    sockets.outbox.post("a", message(MOST))
    assert len(sockets.outbox.flush(0.0)["a"]) == MOST + 1
