# SPDX-License-Identifier: Apache-2.0
"""Changes of adapters through proxies that have not heard of each other: all end with one, none is lost unsaid."""

from types import SimpleNamespace
from typing import cast

import pytest

from pontil.runtime.errors import Unavailable
from pontil.runtime.proxy.fleet.fleet_adapters import MEETS_WITHIN, FleetAdapters
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.wire.adapter_book import AdapterChange
from pontil.runtime.wire.messages import AdapterState, Hello

LOW, HIGH = "1c" * 32, "5a" * 32


def proxy(name: str) -> FleetAdapters:
    """Return what a proxy without workers knows of adapters."""
    registry = cast(Registry, SimpleNamespace(generating=SimpleNamespace(workers=[], available=[])))
    return FleetAdapters(name, registry, lambda message: True, (), may_load=True)


def found(one: FleetAdapters, name: str) -> str | None:
    one.check_known(name)
    return one.book.digest_of(name, one.before.get(name))


def test_of_two_changes_with_one_number_the_proxy_of_the_lost_one_knows() -> None:
    one, two = proxy("p"), proxy("q")
    kept, lost = one.load("sql", HIGH, "/high"), two.load("sql", LOW, "/low")
    assert kept.number == lost.number and one.stands("sql", kept) and two.stands("sql", lost)
    one.book.merge(two.book.changes)
    two.book.merge(one.book.changes)
    assert one.stands("sql", kept) and two.stands("sql", kept) and not two.stands("sql", lost)
    # Once it was heard of, the next change counts.
    gone = two.unload("sql")
    one.book.merge(two.book.changes)
    assert one.stands("sql", gone) and one.book.named({}) == {}


def test_a_name_of_the_launch_is_not_unknown_while_no_worker_is_here() -> None:
    """Its digest is what workers say, all of which may have died."""
    hello = SimpleNamespace(sender="w", adapters={"sql": LOW}, loads_adapters=False)
    workers = [SimpleNamespace(hello=hello)]
    group = SimpleNamespace(workers=workers, available=workers, any_hello=hello)
    registry = cast(Registry, SimpleNamespace(generating=group))
    one = FleetAdapters("p", registry, lambda message: True, ("sql",), may_load=True)
    assert found(one, "sql") == LOW and found(one, "poems") is None
    workers.clear()
    group.any_hello = None
    with pytest.raises(Unavailable):
        found(one, "sql")
    assert found(one, "poems") is None
    one.change("sql", AdapterChange(one.book.next_number, "", ""))
    assert found(one, "sql") is None


def test_a_new_proxy_waits_for_what_each_worker_that_is_here_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that began lately may know some changes, and not that of this name; another one's link may break again and
    again before it has told."""
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[-1])
    hellos = [SimpleNamespace(sender=name, adapters={"sql": LOW}, loads_adapters=True) for name in ("new", "old")]
    workers = {hello.sender: SimpleNamespace(hello=hello, group=None) for hello in hellos}
    group = SimpleNamespace(workers=[*workers.values()], available=[*workers.values()], any_hello=hellos[0])
    registry = SimpleNamespace(generating=group, workers=workers, group_at=lambda sender: None)
    one = FleetAdapters("p", cast(Registry, registry), lambda message: True, ("sql",), may_load=True)

    def tell(sender: str, name: str, digest: str) -> None:
        given = {name: digest}
        one.on_state(AdapterState(sender, "p", {name: 1}, given, {name: "/d"}, loaded=given, failed={}, memory=[]))

    for hello in hellos:
        one.tell_worker(cast(Hello, hello))
    # A change of its own is no news of others.
    one.book.merge({"own": AdapterChange(1, HIGH, "/d")})
    for hello in hellos:
        tell(hello.sender, "own", HIGH)
    with pytest.raises(Unavailable):
        found(one, "sql")
    one.states.clear()
    tell("new", "poems", HIGH)
    for later in (0.1, MEETS_WITHIN + 1):
        clock.append(later)
        with pytest.raises(Unavailable):
            found(one, "sql")
    tell("old", "sql", HIGH)
    workers.pop("new")
    group.available = group.workers = [*workers.values()]
    assert found(one, "sql") == HIGH


def test_a_load_that_is_taken_back_takes_no_later_one_with_it() -> None:
    one = proxy("p")
    change = one.load("sql", HIGH, "/high")
    for number in range(3):
        one.load(f"more{number}", HIGH, "/high")
    # By a proxy that knew of the change, and not of the other names.
    later = AdapterChange(change.number + 1, LOW, "/low")
    one.book.merge({"sql": later})
    one.retract("sql", change)
    assert one.stands("sql", later)


def test_a_load_that_is_taken_back_takes_no_other_of_its_number_with_it() -> None:
    """All workers may have the other one already, of which the proxy of the failed one has not heard."""
    one, two = proxy("p"), proxy("q")
    failed, loaded = one.load("sql", LOW, "/low"), two.load("sql", HIGH, "/high")
    one.retract("sql", failed)
    assert one.book.named({}) == {}
    two.book.merge(one.book.changes)
    one.book.merge(two.book.changes)
    for proxies in (one, two):
        assert proxies.stands("sql", loaded) and proxies.book.named({}) == {"sql": HIGH}
