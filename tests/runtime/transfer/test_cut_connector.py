# SPDX-License-Identifier: Apache-2.0
"""A connector whose link is cut: every pull ends with an error and none is lost, and afterwards all is as before."""

from hostile_connector import HostileConnector, Mischief
from hypothesis import given
from hypothesis import strategies as st
from pools import Pool

from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.cut_connector import CUT, CutConnector

PAIRS = [(1, 2), (2, 3)]


class Link:
    """A pool whose connector can be cut, over one whose pulls take as many polls as a test wants."""

    def __init__(self) -> None:
        self.now = 10.0
        self.peer = Pool(HostileConnector)
        self.pool = Pool(lambda storage, wake: CutConnector(HostileConnector(storage, wake), wake, lambda: self.now))
        assert isinstance(self.pool.connector, CutConnector)
        self.connector = self.pool.connector
        assert isinstance(self.connector.inner, HostileConnector)
        self.inner = self.connector.inner
        self.connector.attach("P", self.peer.connector.register())

    def close(self) -> None:
        self.connector.close()
        self.peer.connector.close()


def test_pulls_fail_while_the_link_is_cut_and_succeed_afterwards() -> None:
    link = Link()
    link.inner.choose = lambda: Mischief.STALL
    stalled = link.pool.pull("P", PAIRS, 0)
    link.inner.choose = lambda: Mischief.NONE
    link.connector.cut(5.0)
    new = link.pool.pull("P", PAIRS, 0)
    for done in link.pool.finish(stalled, new):
        assert (done.error, done.epoch, done.bytes, done.digests) == (CUT, None, 0, [])
    link.now += 5.0
    (done,) = link.pool.finish(link.pool.pull("P", PAIRS, 0))
    assert done.error is None and link.pool.has([2, 3], link.peer, [1, 2])
    assert not link.connector.open and not link.connector.broken
    link.connector.cut(60.0)
    link.connector.cut(0.0)
    assert link.pool.finish(link.pool.pull("P", PAIRS, 0))[0].error is None
    link.close()


STEPS = st.lists(
    st.one_of(
        st.sampled_from([Mischief.NONE, Mischief.DELAY, Mischief.LATE, Mischief.STALL, Mischief.ERROR]),
        st.floats(0.0, 3.0),
        st.sampled_from(["cut", "mend", "cancel"]),
    ),
    max_size=20,
)


@given(steps=STEPS)
def test_every_pull_ends_once_and_none_succeeds_that_the_cut_met(steps: list[Mischief | float | str]) -> None:
    link = Link()
    pulls, met = list[Pull](), set[Pull]()
    for step in steps:
        if isinstance(step, Mischief):
            link.inner.choose = lambda kind=step: kind  # type: ignore[misc]
            pulls.append(link.pool.pull("P", PAIRS, 0))
            met |= {pulls[-1]} if link.connector.is_cut else set()
        elif isinstance(step, float):
            link.now += step
        elif step == "cut":
            met |= set(link.connector.open)
            link.connector.cut(2.0)
        elif step == "mend":
            link.connector.cut(0.0)
        elif pulls:
            pulls[-1].cancel()
    for pull in link.connector.open:
        pull.cancel()
    for pull, done in zip(pulls, link.pool.finish(*pulls), strict=True):
        assert pull not in met or done.error == CUT
    assert not link.connector.open and not link.connector.broken
    link.close()
