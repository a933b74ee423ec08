# SPDX-License-Identifier: Apache-2.0
"""Leases of workers that drain: another worker takes each of them, or the rest of its time is refunded."""

import json
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from leasing_worker import LeasingWorker, leasing, leasing_worker
from scripted_site import ScriptedSite, site
from scripted_worker import DEADLINE, ScriptedWorker, eventually, silent

from pontil.runtime.accounting.audit import audit
from pontil.runtime.accounting.usage_file import open_to_read
from pontil.runtime.config.proxy_config import FurtherModel
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.lease_messages import MOVED
from pontil.runtime.wire.messages import Failed, Message, PrefixDelta, RoleChange, Submit

IDS = [40 + number % 50 for number in range(40)]
PATH, OTHER = "/v1/prefixes", "other/model"


def keep(served: ScriptedSite, **fields: Any) -> str:
    answer = served.ask("POST", PATH, {"prompt": IDS, "ttl": 600} | fields)
    assert answer.status == 200, answer.body
    return str(answer.json["id"])


def shown(served: ScriptedSite, name: str) -> dict[str, Any]:
    found: dict[str, Any] = served.ask("GET", f"{PATH}/{name}").json
    return found


def refusing(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    yield Failed(worker.incarnation, worker.proxy, submit.request_id, submit.attempt, "there is no room", 429)


def two_workers(served: ScriptedSite, **fields: Any) -> tuple[LeasingWorker, LeasingWorker, str]:
    """Return a worker that holds a lease, another one that has less room, and the lease."""
    holder, other = leasing_worker(served, "mixed:0", 1000), leasing_worker(served, "mixed:1", 900)
    name = keep(served, **fields)
    if name not in holder.leases:
        holder, other = other, holder
    holder.submits.get()
    return holder, other, name


def test_a_lease_moves_from_a_worker_that_drains(made: ScriptedSite, tmp_path: Path) -> None:
    """Its blocks are pulled, its time goes on without a gap, and nobody is billed for the move."""
    holder, other, name = two_workers(made, cache_salt="mine")
    kept = shown(made, name)
    holder.drain()
    eventually(lambda: name in other.leases and name not in holder.leases, "the move")
    first, second = holder.submits.get(), other.submits.get()
    assert (first.phase, first.lease, second.phase) == ("prefill", None, "decode")
    assert second.prompt == IDS[:32] == first.prompt and second.cache_salt != ""
    assert second.lease is not None and second.lease["age"] >= 0.0 and second.lease["seconds"] == 600
    eventually(lambda: shown(made, name)["state"] == "held", "the end of the move")
    # Once more for each word that it says before it has heard.
    assert {one.action for one in holder.orders} == {"let_go"} and not other.orders
    after = shown(made, name)
    for field in ("created_at", "ttl", "tokens", "bytes"):
        assert after[field] == kept[field]
    assert abs(after["expires_at"] - kept["expires_at"]) <= 1
    gone = made.ask("DELETE", f"{PATH}/{name}").json["byte_seconds"]
    assert gone["granted"] == kept["byte_seconds"]["granted"] == gone["held"] + gone["released"]
    eventually(lambda: not other.leases, "the release where it is now")
    with closing(open_to_read(tmp_path / "usage.db")) as database:

        def rows(query: str) -> list[tuple[Any, ...]]:
            return database.execute(query).fetchall()

        eventually(lambda: rows("SELECT worker, outcome FROM leases") == [(other.name, "released")], "the row")
        assert rows("SELECT finish FROM requests") == [("leased",)], "the move is in no bill"
        live = made.ask("GET", "/admin/ledger").json
        eventually(lambda: all(one.equal for one in audit(database, live)), "equal books")


def test_nothing_is_pulled_from_a_worker_that_has_yet_to_serve(made: ScriptedSite) -> None:
    """The next process of its worker holds the lease again, and waits for the verdict of a gate: another worker
    computes the prompt."""
    holder, other, name = two_workers(made)
    holder.fall_silent(made.proxy.registry)
    tried = LeasingWorker(made.endpoint, holder.name, made.tokenizer, (5,), role="mixed", draining=True).ready(1000)
    made.workers.append(tried)
    tried.start()
    eventually(lambda: name in other.leases and not tried.leases, "the move")
    assert tried.submits.empty() and other.submits.get().phase == "whole"
    assert shown(made, name)["state"] == "held"


@pytest.mark.parametrize(("start", "adapted"), [(20, ("5a" * 32, 20)), (31, ("5a" * 32, 31)), (32, ("", 0))])
def test_a_lease_moves_with_the_start_of_its_adapter(made: ScriptedSite, start: int, adapted: tuple[str, int]) -> None:
    """Its prompt is cut at a block: within the tokens that activate the adapter, or before them."""
    hello = {"adapters": {"late": "5a" * 32}, "invocations": {"late": IDS[start : start + 3]}}
    holder, other = (leasing_worker(made, f"mixed:{number}", 1000, **hello) for number in range(2))
    name = keep(made, model="late")
    if name not in holder.leases:
        holder, other = other, holder
    assert holder.submits.get().adapter_start == start
    holder.drain()
    eventually(lambda: name in other.leases and name not in holder.leases, "the move")
    sent = [holder.submits.get(), other.submits.get()]
    assert [(one.adapter, one.adapter_start, one.prompt) for one in sent] == [(*adapted, IDS[:32])] * 2
    state = other.leases[name].state
    assert (state.adapter, state.adapter_start) == adapted


def test_who_takes_a_lease_is_told_where_its_adapter_is(made: ScriptedSite) -> None:
    """A worker may have begun after the adapter's name was free: it knows the adapter by nothing else."""
    holder, other, name = two_workers(made)
    kept, told = holder.leases[name], ("5a" * 32, "/adapters/sql")
    kept.state = replace(kept.state, adapter=told[0], adapter_directory=told[1])
    holder.say(holder.now(kept))
    view = made.proxy.leases.views[name]
    eventually(lambda: view.prompt.directory == told[1], "the adapter of the lease")
    holder.drain()
    eventually(lambda: name in other.leases and name not in holder.leases, "the move")
    for submit in (holder.submits.get(), other.submits.get()):
        assert (submit.adapter, submit.adapter_directory) == told
    state = other.leases[name].state
    assert (state.adapter, state.adapter_directory) == told
    # So is the next process of that worker, and whoever moves it on from there.
    eventually(lambda: view.worker == other.incarnation and view.prompt.directory == told[1], "the lease there")
    # In the thread of the proxy's sockets: two that send by one at a time end the process.
    made.loop.call_soon_threadsafe(made.proxy.leases.resume, view, other.incarnation, view.moves)
    eventually(lambda: bool(other.orders), "an order")
    assert (other.orders[-1].adapter, other.orders[-1].adapter_directory) == told


def test_a_lease_stays_with_a_worker_whose_role_changes(made: ScriptedSite) -> None:
    """It keeps its memory, so nothing is moved; requests behind the lease still go there."""
    holder, other, name = two_workers(made)
    known = made.proxy.registry.workers
    for worker, role in ((other, "decode"), (holder, "prefill")):
        worker.say(RoleChange(worker.incarnation, worker.proxy, role, False))
    eventually(
        lambda: (known[holder.incarnation].role, known[other.incarnation].role) == ("prefill", "decode"), "roles"
    )
    asked = made.ask("POST", "/v1/completions", {"prompt": [*IDS, 7], "max_tokens": 1})
    assert asked.status == 200, asked.body
    submit = holder.submits.get()
    assert (submit.phase, submit.prompt) == ("prefill", [*IDS, 7])
    assert not holder.orders and not other.orders and name in holder.leases
    assert shown(made, name)["state"] == "held"


def test_a_lease_says_that_it_moves(made: ScriptedSite) -> None:
    """It is with a worker that serves nobody, until another one has it; who extends it meanwhile loses nothing."""
    holder, other, name = two_workers(made)
    other.script = silent
    holder.drain()
    submit = other.submits.get()
    assert shown(made, name)["state"] == "moving"
    longer = made.ask("PATCH", f"{PATH}/{name}", {"ttl": 900}).json["ttl"]
    eventually(lambda: holder.leases[name].state.seconds == longer, "the extension")
    other.say(other.grant(submit))
    eventually(lambda: shown(made, name)["state"] == "held", "the end of the move")
    eventually(lambda: other.leases[name].state.seconds == longer, "the extension where it is now")
    assert shown(made, name)["ttl"] == longer


def test_who_does_not_bill_a_lease_may_hear_first_that_it_was_let_go(made: ScriptedSite) -> None:
    """Another proxy has it moved. What its workers say comes in any order here, and ends nothing."""
    holder, other, name = two_workers(made)
    state = replace(holder.now(holder.leases[name]), lease_id="theirs", proxy="elsewhere")
    holder.say(state)
    eventually(lambda: shown(made, "theirs").get("state") == "held", "the lease of another proxy")
    holder.say(replace(state, state="refunded", reason=MOVED, keys=b"", prompt=b""))
    eventually(lambda: shown(made, "theirs")["state"] == "moving", "the end at its first worker")
    other.say(replace(state, sender=other.incarnation))
    eventually(lambda: shown(made, "theirs")["state"] == "held", "the lease at its next worker")
    assert not other.orders and not holder.orders


def test_who_extends_a_lease_while_another_proxy_moves_it_loses_nothing(made: ScriptedSite) -> None:
    """Its first worker has let go of it by the time it hears of the extension: the next one is told as well."""
    holder, other, _ = two_workers(made)
    state = replace(holder.now(next(iter(holder.leases.values()))), lease_id="theirs", proxy="elsewhere", keys=b"")
    holder.say(state)
    eventually(lambda: shown(made, "theirs").get("state") == "held", "the lease of another proxy")
    longer = made.ask("PATCH", f"{PATH}/theirs", {"ttl": 900}).json["ttl"]
    assert longer >= 900
    other.say(replace(state, sender=other.incarnation, moves=1))
    eventually(lambda: other.orders, "the order to the next worker")
    assert [(one.action, one.seconds) for one in other.orders] == [("extend", longer)]
    assert shown(made, "theirs")["ttl"] == longer


def test_a_prompt_that_cannot_be_pulled_is_computed(made: ScriptedSite) -> None:
    holder, other, name = two_workers(made)
    other.pulls = False
    holder.drain()
    eventually(lambda: name in other.leases and name not in holder.leases, "the move")
    assert [other.submits.get().phase, other.submits.get().phase] == ["decode", "whole"]


@pytest.mark.parametrize("budget", [None, 100])
def test_what_no_other_worker_can_hold_is_refunded(made: ScriptedSite, budget: int | None) -> None:
    holder = leasing_worker(made, "mixed:0", 1000)
    name = keep(made)
    if budget is not None:
        leasing_worker(made, "mixed:1", budget)
    holder.drain()
    eventually(lambda: shown(made, name)["state"] == "refunded", "the refund")
    # Once more for each tick before it is heard.
    assert {one.action for one in holder.orders} == {"refund"}
    amounts = shown(made, name)["byte_seconds"]
    assert amounts["granted"] == amounts["held"] + amounts["refunded"]


def test_another_release_takes_no_lease(made: ScriptedSite) -> None:
    holder = leasing_worker(made, "mixed:0", 1000)
    name = keep(made)
    newer = LeasingWorker(made.endpoint, "mixed:1", made.tokenizer, (), role="mixed", revision="next").ready(1000)
    made.workers.append(newer)
    newer.start()
    holder.drain()
    eventually(lambda: shown(made, name)["state"] == "refunded", "the refund")
    assert newer.submits.empty()


def test_a_worker_that_refuses_twice_is_asked_no_more(made: ScriptedSite) -> None:
    holder, other, name = two_workers(made)
    other.script = refusing
    holder.drain()
    eventually(lambda: shown(made, name)["state"] == "refunded", "the refund")
    assert other.submits.qsize() == 2 and not made.proxy.moves.open


def test_a_lease_of_many_moves_a_few_at_a_time(made: ScriptedSite) -> None:
    holder = leasing_worker(made, "mixed:0", 2000)
    names = [keep(made, prompt=[number, *IDS[1:]]) for number in range(50, 57)]
    other = leasing_worker(made, "mixed:1", 2000)
    most = 0
    move = made.proxy.moves.move

    def counted(view: Any, source: Any) -> None:
        nonlocal most
        move(view, source)
        most = max(most, len(made.proxy.moves.open))

    made.proxy.moves.move = counted  # type: ignore[method-assign]
    holder.drain()
    eventually(lambda: set(names) == set(other.leases) and not holder.leases, "all moves")
    assert most == 4


@contextmanager
def full(served: ScriptedSite, holder: LeasingWorker) -> Iterator[None]:
    """Have all seats of the worker that holds a lease taken by a request behind it, which gets no answer."""
    holder.script = silent
    with ExitStack() as stack:
        for _ in range(2):
            connection = stack.enter_context(closing(served.connect()))
            body = json.dumps({"prompt": [*IDS, 1], "max_tokens": 2, "n": 8})
            connection.request("POST", "/v1/completions", body, {"content-type": "application/json"})
            assert holder.submits.get(timeout=DEADLINE).prompt == [*IDS, 1]
        yield
    for _ in range(2):
        holder.cancels.get(timeout=DEADLINE)
    holder.script = leasing


def ask(served: ScriptedSite, prompt: list[int], **fields: Any) -> None:
    answer = served.ask("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 2} | fields)
    assert answer.status == 200, answer.body


def test_a_lease_follows_a_prompt_that_was_computed_elsewhere(made: ScriptedSite) -> None:
    """Its worker is full: the one that had to compute the prompt has its blocks, and keeps them from then on, so that
    the next request finds them there. Its time goes on, and what the first worker says late changes nothing."""
    holder, other, name = two_workers(made)
    kept, late = shown(made, name), holder.now(holder.leases[name])
    with full(made, holder):
        ask(made, [*IDS, 7])
        eventually(lambda: name in other.leases and name not in holder.leases, "the move")
        assert [one.action for one in other.orders] == ["resume"]
        heard = len(holder.orders)
        holder.say(replace(late, seconds=601))
        eventually(lambda: len(holder.orders) > heard, "the answer to what it said late")
        assert {one.action for one in holder.orders} == {"let_go"}
    assert other.leases[name].state.moves == 1
    after = shown(made, name)
    assert after["state"] == "held"
    for field in ("created_at", "ttl", "tokens", "bytes"):
        assert after[field] == kept[field]
    other.submits.get()
    holder.say(PrefixDelta(holder.incarnation, holder.proxy, 0))
    known = made.proxy.registry.workers[holder.incarnation]
    eventually(lambda: not known.prefixes.keys, "the end of its blocks where it was")
    with full(made, other):
        ask(made, [*IDS, 8])
        eventually(lambda: name in holder.leases and name not in other.leases, "the way back")
    gone = made.ask("DELETE", f"{PATH}/{name}").json["byte_seconds"]
    assert gone["granted"] == kept["byte_seconds"]["granted"] == gone["held"] + gone["released"]
    eventually(lambda: not holder.leases, "the release where it is now")


@pytest.mark.parametrize("prompt, fields", [(IDS[:20], {}), ([3, *IDS], {}), (IDS, {"cache_salt": "theirs"})])
def test_a_lease_stays_where_no_prompt_had_its_blocks(
    made: ScriptedSite, prompt: list[int], fields: dict[str, str]
) -> None:
    holder, other, name = two_workers(made)
    with full(made, holder):
        ask(made, prompt, **fields)
        assert other.submits.get().prompt == prompt
    assert name in holder.leases and not holder.orders and not other.orders
    assert shown(made, name)["state"] == "held"


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_lease_follows_no_prompt_of_another_model(tmp_path: Path, tokenizer: Tokenizer, is_lost: bool) -> None:
    """Equal ids have equal keys in every model, and blocks that are of no use to another one."""
    parsers = {"tool_call_parser": "auto", "reasoning_parser": "auto"}
    further = FurtherModel(name=OTHER, model="/other", hide_end_token=False, adapter=(), **parsers)
    with site(tmp_path, tokenizer, {OTHER: tokenizer}, further_models=(further,), failover_timeout=60.0) as made:
        holder = leasing_worker(made)
        other = leasing_worker(made, "mixed:1", model=OTHER, model_fingerprint=OTHER)
        name = keep(made)
        holder.submits.get()
        other.script = partial(told_of, short_keys(holder, name))
        with ExitStack() as stack:
            if is_lost:
                holder.fall_silent(made.proxy.registry)
            else:
                stack.enter_context(full(made, holder))
            # An order would come behind the first and before the second.
            for last in (7, 8):
                ask(made, [*IDS, last], model=OTHER)
                assert other.submits.get().prompt == [*IDS, last]
        assert not other.orders and not other.leases
        assert shown(made, name)["state"] == ("moving" if is_lost else "held")


def test_a_lease_that_is_lost_follows_its_prompt(made: ScriptedSite) -> None:
    """Its worker died and no other process has come yet: who asks for the prompt meanwhile has it kept elsewhere."""
    holder, other, name = two_workers(made)
    added = short_keys(holder, name)
    holder.fall_silent(made.proxy.registry)
    eventually(lambda: shown(made, name)["state"] == "moving", "the loss")
    other.script = partial(told_of, added)
    ask(made, [*IDS, 7])
    eventually(lambda: name in other.leases, "the move")
    eventually(lambda: shown(made, name)["state"] == "held", "the lease at its next worker")


def short_keys(holder: LeasingWorker, name: str) -> bytes:
    """Return the keys of a lease as workers tell of blocks."""
    keys = holder.leases[name].state.keys
    return b"".join(keys[at : at + 8] for at in range(0, len(keys), 16))


def told_of(added: bytes, worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Tell of the prompt's blocks before its first token, as workers do."""
    yield PrefixDelta(worker.incarnation, worker.proxy, 0, added)
    yield from leasing(worker, submit)
