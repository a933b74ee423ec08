# SPDX-License-Identifier: Apache-2.0
"""Leases that another proxy bills, and those of which this one missed what became of them."""

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from leasing_worker import LeasingWorker, leasing_worker
from scripted_site import ScriptedSite
from scripted_worker import eventually

from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.proxy.leases.fleet_leases import LEFT
from pontil.runtime.wire.lease_messages import REFUSED
from pontil.runtime.wire.messages import Goodbye, LeaseState, LeasesTold

IDS = [40 + number % 50 for number in range(40)]
PATH, THEIRS = "/v1/prefixes", "theirs"


def keep(made: ScriptedSite) -> str:
    answer = made.ask("POST", PATH, {"prompt": IDS, "ttl": 600})
    assert answer.status == 200, answer.body
    return str(answer.json["id"])


def state_of(made: ScriptedSite, name: str) -> str | None:
    found: str | None = made.ask("GET", f"{PATH}/{name}").json.get("state")
    return found


def holder_of(made: ScriptedSite, name: str) -> LeasingWorker:
    (found,) = (one for one in made.workers if isinstance(one, LeasingWorker) and name in one.leases)
    return found


def with_theirs(made: ScriptedSite) -> tuple[LeasingWorker, LeasingWorker, LeaseState]:
    """Return two workers, of which the first holds a lease that another proxy bills, and what it says of it."""
    workers = [leasing_worker(made, "mixed:0"), leasing_worker(made, "mixed:1")]
    holder = holder_of(made, keep(made))
    (other,) = (one for one in workers if one is not holder)
    state = replace(next(iter(holder.leases.values())).state, lease_id=THEIRS, proxy="elsewhere")
    holder.say(state)
    eventually(lambda: state_of(made, THEIRS) == "held", "the lease of another proxy")
    return holder, other, state


def test_a_lease_that_another_proxy_bills_goes_on_where_that_has_it_kept(made: ScriptedSite) -> None:
    """This proxy was cut off from its worker while it moved. That nobody told it so ends nothing."""
    holder, other, state = with_theirs(made)
    holder.say(LeasesTold(holder.incarnation, holder.proxy, []))
    eventually(lambda: state_of(made, THEIRS) == "refunded", "the end of what its worker does not hold any more")
    other.say(replace(state, sender=other.incarnation, moves=1))
    eventually(lambda: state_of(made, THEIRS) == "held", "the lease at its next worker")
    assert not other.orders and not holder.orders
    assert made.ask("DELETE", f"{PATH}/{THEIRS}").json["state"] == "released"
    other.say(replace(state, sender=other.incarnation, moves=1))
    eventually(lambda: [one.action for one in other.orders] == ["release", "release"], "its client's wish, once more")


def test_what_this_proxy_has_refunded_is_refunded_where_it_is_held(made: ScriptedSite, tmp_path: Path) -> None:
    """No client has released it, and none is to read that somebody has."""
    holder = leasing_worker(made)
    name = keep(made)
    kept = holder.leases[name]
    holder.say(LeasesTold(holder.incarnation, holder.proxy, []))
    eventually(lambda: state_of(made, name) == "refunded", "the refund")
    holder.say(holder.now(kept))
    eventually(lambda: [one.action for one in holder.orders] == ["refund"], "the order")
    eventually(lambda: row(tmp_path, name)[:2] == ("closed", "refunded"), "the row")


def test_the_end_of_a_lease_is_billed_by_who_has_to_once_its_proxy_is_gone(made: ScriptedSite, tmp_path: Path) -> None:
    """Its client released it here, while another proxy billed it, which died before it heard of that."""
    holder, _, state = with_theirs(made)
    released = made.ask("DELETE", f"{PATH}/{THEIRS}").json["byte_seconds"]
    end = replace(state, state="released", proxy=made.proxy.incarnation, keys=b"", prompt=b"", age=0.0)
    for _ in range(2):
        holder.say(end)
    eventually(lambda: row(tmp_path, THEIRS) == ("closed", "released", released["granted"]), "the row")
    assert made.ask("GET", "/admin/ledger").json["leases"] == 1, "it is billed once"


def row(folder: Path, name: str) -> tuple[Any, ...]:
    with closing(open_to_read(folder / "usage.db")) as database:
        query = "SELECT state, outcome, released FROM leases WHERE id = ?"
        return tuple(database.execute(query, (name,)).fetchone() or ())


@pytest.mark.parametrize("is_later", [False, True])
def test_of_two_workers_with_as_many_moves_every_proxy_takes_the_same(made: ScriptedSite, is_later: bool) -> None:
    """Each was told to take it by another proxy. Whichever is heard first, only one of them is told to let go."""
    first, second, state = with_theirs(made)
    heard = sorted((first, second), key=lambda one: one.incarnation, reverse=is_later)
    for one in heard:
        one.say(replace(state, sender=one.incarnation, moves=1))
    loser = min(heard, key=lambda one: one.incarnation)
    eventually(lambda: loser.orders and loser.orders[-1].moves == 2, "the order to let go")
    (winner,) = (one for one in heard if one is not loser)
    eventually(lambda: made.proxy.leases.views[THEIRS].worker == winner.incarnation, "the lease where it stays")
    assert {(one.action, one.moves) for one in loser.orders} <= {("let_go", 1), ("let_go", 2)}
    assert not [one for one in winner.orders if one.moves == 2]


def test_the_last_words_of_a_worker_count_behind_the_news_of_its_end(made: ScriptedSite, tmp_path: Path) -> None:
    """It drained, and refunded what nobody took, a moment before it ended for good: nobody comes in its place."""
    holder, _, _ = with_theirs(made)
    name = next(iter(holder.leases))
    end = replace(holder.now(holder.leases[name]), state="refunded", reason="it drains", keys=b"", prompt=b"")
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: state_of(made, name) == "moving", "the loss")
    made.loop.call_soon_threadsafe(made.proxy.leases.on_state, end)
    eventually(lambda: state_of(made, name) == "refunded", "the refund")
    # By its word, and not since nobody came in its place.
    eventually(lambda: row(tmp_path, name)[:2] == ("closed", "refunded"), "the row")
    with closing(open_to_read(tmp_path / "usage.db")) as database:
        assert database.execute("SELECT reason FROM leases WHERE id = ?", (name,)).fetchone() == ("it drains",)


def test_a_lost_lease_waits_for_its_workers_successor_alone(made: ScriptedSite) -> None:
    """Another worker that lacks its blocks says nothing of those that its own worker's next process may find."""
    holder, other, _ = with_theirs(made)
    name = next(iter(holder.leases))
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: state_of(made, name) == "moving", "the loss")
    about = made.proxy.incarnation, name, "", made.proxy.incarnation, REFUSED
    other.say(LeaseState(other.incarnation, *about, 0, 0, 0, 0.0, "only 0 of 32 tokens are here"))
    leasing_worker(made, holder.name)
    eventually(lambda: state_of(made, name) == "held", "the lease at the next process")


def test_a_process_that_came_before_the_news_of_the_end_of_the_one_before_keeps_its_leases(made: ScriptedSite) -> None:
    """A kill may be noticed after the next process has registered."""
    holder, other, _ = with_theirs(made)
    name = next(iter(holder.leases))
    successor = leasing_worker(made, holder.name)
    assert not successor.orders
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: [one.lease_id for one in successor.orders if one.action == "resume"], "the order to keep it")
    eventually(lambda: name in successor.leases and state_of(made, name) == "held", "the lease at the next process")
    assert not other.orders


def test_a_lost_lease_ends_when_its_workers_next_process_leaves_for_good(made: ScriptedSite) -> None:
    holder, _, _ = with_theirs(made)
    name = next(iter(holder.leases))
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: state_of(made, name) == "moving", "the loss")
    # It ends before it has said whether it keeps it.
    successor = made.worker(holder.name)
    eventually(lambda: successor.incarnation in made.proxy.registry.workers, "the next process")
    successor.say(Goodbye(successor.incarnation, successor.proxy, for_good=True))
    eventually(lambda: made.proxy.registry.workers[successor.incarnation].contact.last, "its goodbye")
    successor.fall_silent(made.proxy.registry)
    eventually(lambda: state_of(made, name) == "refunded", "the refund")
    # By that, and not since nobody had come in its place for long enough.
    assert made.proxy.leases.over[name].term.reason == LEFT
