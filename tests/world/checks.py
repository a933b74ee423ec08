# SPDX-License-Identifier: Apache-2.0
"""The invariants of every seed. Each is one function; what does not hold is noted as a violation under its name.

Three are watched all the time: `no_wrong_block_is_read` (hash_model.py, ghost_blocks.py), `every_outcome_is_defined`
(clients.py) and `no_worker_is_idle_beside_a_queue` (fairness.py). Those of watching.py are looked at again and again
while a seed runs."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import TYPE_CHECKING

from adapter_clients import ADAPTER_CHECKS, all_know_the_same_adapters, of_adapters
from answer_checks import (
    a_late_reader_has_all_or_nothing,
    events_come_in_their_order,
    scores_equal_the_oracle,
    texts_equal_the_oracle,
    vectors_equal_the_oracle,
)
from answer_forms import RESPONSE
from batch_clients import each_line_has_one_outcome_and_one_bill, of_batches
from classed_keys import usage_says_the_class
from clients import ClientTry, ClientWish
from fairness import limits_are_those_of_the_key, one_token_comes_soon_beside_many, who_waits_as_told_is_let_in
from followed_leases import a_lease_that_moves_is_billed_once
from gates import a_gate_tells_right_from_wrong
from hash_model import answer_of
from hostile_clients import hostile_requests_have_a_defined_answer
from kept_turns import a_lease_that_no_answer_named_is_held_by_nobody
from lease_clients import a_leased_token_is_hit_or_refunded, byte_seconds_are_conserved, of_leases
from operators import (
    NEW_KEYS,
    RESTART_PROXIES,
    all_work_in_their_roles_again,
    every_change_ends,
    who_asked_a_leaving_proxy_has_an_answer,
)
from random_runs import counts_equal_the_plain_run
from rank_checks import every_plan_is_carried_out_and_answered, every_rank_holds_what_the_prefix_cache_names
from receipt_clients import of_receipts, receipts_are_true
from releases import salt_of_answer, waits_for_its_release, was_begun_by_next
from sounds import sounds_equal_the_oracle

from pontil.runtime.accounting.audit import audit
from pontil.runtime.proxy.siblings.leases import UNBORN
from pontil.runtime.proxy.siblings.stream_record import StreamRecords

if TYPE_CHECKING:
    from seed_run import SeedRun

Condition = Callable[[], bool]
Check = Callable[["SeedRun"], Iterator[str]]
# Seconds within which a client has its answer, or is told why not, from when it first asks or the last fault is over.
ANSWERED_WITHIN = 15.0


def check_all(run: "SeedRun", those: "tuple[Check, ...] | None" = None) -> None:
    for check in CHECKS if those is None else those:
        for what in check(run):
            run.world.violate(f"{check.__name__}: {what}")


def tries(run: "SeedRun") -> Iterator[tuple[ClientWish, ClientTry]]:
    for call in run.calls:
        for one in call.tries:
            yield call.wish, one


def tokens_equal_the_oracle(run: "SeedRun") -> Iterator[str]:
    """Every token that any client got is the right one, all of an answer those of one release, and every complete
    answer is whole."""
    vocab = run.model.config.vocab_size
    for wish, one in tries(run):
        salt = salt_of_answer(run, wish, one)
        for choice, ids in enumerate(one.ids):
            right = answer_of(wish.prompt, wish.seed, choice, wish.max_tokens, vocab, salt)
            if ids != right[: len(ids)]:
                place = next(index for index, pair in enumerate(zip(ids, right, strict=False)) if pair[0] != pair[1])
                yield f"{one.name} choice {choice} is wrong from token {place} of {len(ids)}"
            elif one.ended == "complete":
                yield from is_whole(run, wish, one, choice, right)


def is_whole(run: "SeedRun", wish: ClientWish, one: ClientTry, choice: int, right: list[int]) -> Iterator[str]:
    """Yield what is wrong with the end of a complete answer."""
    count, finish = one.delivered if wish.form == RESPONSE else len(one.ids[choice]), one.finishes[choice]
    if wish.stop is None:
        if count != len(right) or finish != "length":
            yield f"{one.name} choice {choice} has {count} of {len(right)} tokens and ends by {finish}"
        return
    decode = run.model.tokenizer.decode
    counts = range(1, len(right) + 1) if wish.stop in decode(right) else ()
    stopped = next((count for count in counts if wish.stop in decode(right[:count])), None)
    wanted = (len(right), "length") if stopped is None else (stopped, "stop")
    if (count, finish) != wanted:
        yield f"{one.name} choice {choice} has {count} tokens and ends by {finish}, not {wanted}"
    if finish == "stop" and wish.stop in one.texts[choice]:
        yield f"{one.name} choice {choice} has its stop string in its text"


def a_stream_goes_on_within_its_window(run: "SeedRun") -> Iterator[str]:
    """No client is told that there is no stream to continue before the window of its record is over."""
    is_full = any(fault.kind == "full" for fault in run.faults)
    ends = (RESTART_PROXIES, NEW_KEYS)
    if is_full and any(fault.target in run.plan.proxy_names or fault.kind in ends for fault in run.faults):
        # A proxy may have died that could write the row of a stream, and not its end into the record; or left one for
        # which the record had no room.
        return
    if any(fault.seconds >= run.plan.resume_window for fault in run.faults):
        # Nobody could continue it in time.
        return
    for _, one in tries(run):
        lost_at = run.world.disks.lost_at
        if lost_at is not None and one.began <= lost_at:
            # Records outlive processes, and no power cut.
            continue
        if one.status == 404 and one.continued and one.ended_at - one.began < run.plan.resume_window:
            yield f"{one.name} began {one.ended_at - one.began:.1f} s before"


def usage_equals_deliveries(run: "SeedRun") -> Iterator[str]:
    """The usage of a complete answer is what came."""
    for wish, one in tries(run):
        if one.ended == "complete":
            assert one.usage is not None
            said = one.usage["prompt_tokens"], one.usage["completion_tokens"]
            if said != (len(wish.prompt), one.billed):
                yield f"{one.name} says {said} for {len(wish.prompt)} and {one.billed} tokens"


def the_usage_log_has_each_request_once(run: "SeedRun") -> Iterator[str]:
    """The log has one row of each answer, or one of each text that was embedded or stage that made it, closed, with its
    counts; of a try that broke off at most as many, not open."""
    path = run.folder / "usage"
    with closing(sqlite3.connect(path)) as database:
        rows = database.execute("SELECT name, state, prompt_tokens, completion_tokens FROM requests").fetchall()
    counts = Counter(name for name, *_ in rows)
    by_name: dict[str, list[tuple[str, int, int]]] = {}
    for name, *row in rows:
        by_name.setdefault(name, []).append(row)
    for wish, one in tries(run):
        if counts[one.name] > wish.rows:
            yield f"{one.name} is there {counts[one.name]} times"
        own = by_name.get(one.name, [])
        if one.name in run.world.disks.lost_rows:
            continue
        states = [state for state, *_ in own]
        if one.ended == "complete" and states != ["closed"] * wish.rows:
            yield f"{one.name} is complete, and its rows are {own}"
        elif one.ended == "complete":
            billed = sum(prompt for _, prompt, _ in own), sum(completion for *_, completion in own)
            if billed != (len(wish.prompt), one.billed):
                yield f"{one.name} is billed {billed} for {len(wish.prompt), one.billed}"
        elif "open" in states and not wish.resumable:
            # A stream that may be continued is billed when its window is over.
            yield f"{one.name} ended as {one.ended}, and its row is still open"
    for name in counts.keys() - {one.name for _, one in tries(run)} - run.hostile.names:
        if of_batches(name) or of_leases(name) or of_receipts(name) or of_adapters(name):
            continue
        yield f"{name} is there, and nobody asked for it"


def a_row_is_there_before_its_reply_ends(run: "SeedRun", wish: ClientWish, name: str) -> None:
    """Note a violation if the rows of an answer are not closed on a good disk by when its client has all of it."""
    if any(fault.kind in ("full", "slow disk") for fault in run.faults):
        return
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        closed = "SELECT count(*) FROM requests WHERE name = ? AND state = 'closed'"
        (count,) = database.execute(closed, (name,)).fetchone()
    if count < wish.rows:
        run.world.violate(f"a_row_is_there_before_its_reply_ends: {name} is answered, and has no closed row")


def who_was_refused_is_not_billed(run: "SeedRun") -> Iterator[str]:
    """A try that got no answer, but a refusal, has no row with tokens: nobody was offered them."""
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        billed = dict(database.execute("SELECT name, completion_tokens FROM requests WHERE completion_tokens > 0"))
    for _, one in tries(run):
        if one.ended == "refused" and one.name in billed:
            yield f"{one.name} was refused, and is billed {billed[one.name]} tokens"


def no_row_is_open_without_a_record(run: "SeedRun") -> Iterator[str]:
    """The row of a request stays open only while its stream can be continued."""
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        still_open = [row[0] for row in database.execute("SELECT id FROM requests WHERE state = 'open'")]
    kept = set(StreamRecords(run.folder / "streams").requests())
    for request in still_open:
        if request not in kept:
            yield f"the row of {request} is open, and its stream has no record"


def nothing_outlives_its_window(run: "SeedRun") -> Iterator[str]:
    """Once their windows are over, streams have no records, and no request has an open row. A record whose owner died
    while it made it stays for longer."""
    for path in sorted((run.folder / "streams").iterdir()):
        if path.suffix != UNBORN:
            yield f"there is still a {path.suffix} file"
    with closing(sqlite3.connect(run.folder / "usage")) as database:
        for (name,) in database.execute("SELECT name FROM requests WHERE state = 'open' ORDER BY name"):
            yield f"the row of {name} is still open"


def the_audit_is_equal(run: "SeedRun") -> Iterator[str]:
    """Workers' counts, the ledger's sums and the rows are equal, where no row was lost. What was lost on its way is
    accounted for."""
    if not run.world.disks.lost_rows:
        with closing(sqlite3.connect(run.folder / "usage")) as database:
            yield from (one.text for one in audit(database) if not one.equal)


def nobody_waits_past_a_deadline(run: "SeedRun") -> Iterator[str]:
    """Every client has an outcome within a bound from when it asked, or from the last fault."""
    for call in run.calls:
        ended = call.ended_at if call.outcome else run.world.time
        waited = ended - max(call.began, min(run.made.over_at, ended))
        if call.outcome in (None, "failed"):
            yield f"client {call.wish.number} ended as {call.outcome} after {len(call.tries)} tries"
        elif waited > ANSWERED_WITHIN:
            names = [one.name for one in call.tries]
            if ended <= waits_for_its_release(run.site, call.began) and was_begun_by_next(run.world, names):
                continue
            yield f"client {call.wish.number} waited {waited:.1f} s after the last fault"


def nothing_is_left_two_seconds_after_the_last_fault(run: "SeedRun") -> Iterator[str]:
    """Blocks, seats, leases, records and tickets return at once, not only after every timeout."""
    for process in run.site.all_workers:
        if left := {name: count for name, count in process.left.items() if count}:
            yield f"{process} has {left}"
    for serving in run.site.proxies:
        proxy = serving.proxy
        assert proxy is not None
        seats = sum(worker.in_flight for worker in proxy.registry.workers.values())
        left = {"requests": len(proxy.requests), "seats": seats, "imbalance": proxy.ledger.imbalance}
        if left := {name: count for name, count in left.items() if count}:
            yield f"{serving} has {left}"


def the_service_is_whole_again(run: "SeedRun") -> Iterator[str]:
    """Every process serves, and every proxy knows every worker."""
    if run.site.failure is not None:
        yield str(run.site.failure)
    for child in run.site.children:
        if child.state.value != "ready":
            yield f"{child.name} is {child.state.value}"
    for process in run.site.proxies:
        assert process.proxy is not None
        known = sorted(worker.hello.name for worker in process.proxy.registry.workers.values())
        if known != sorted(run.plan.registered_names):
            yield f"{process} knows {known}"


def proxies_know_the_room(run: "SeedRun") -> Iterator[str]:
    """A proxy counts as many blocks at each worker as sequences can own there."""
    pools = {
        one.worker.sockets.incarnation: one.worker.machine.pool for one in run.site.workers if one.worker is not None
    }
    for process in run.site.proxies:
        assert process.proxy is not None
        for worker in process.proxy.registry.workers.values():
            pool = pools.get(worker.hello.sender)
            if pool is not None and worker.capacity != pool.capacity:
                yield f"{process} counts {worker.capacity} of {pool.capacity} blocks of {worker.hello.name}"


def peers_that_live_are_not_lost(run: "SeedRun") -> Iterator[str]:
    """No worker takes one that serves for lost, or failed, while it has a connection to it."""
    serving = {one.worker.sockets.incarnation: one for one in run.site.workers if one.worker is not None}
    for process in run.site.workers:
        assert process.worker is not None
        for peer, reason in process.worker.decode.peers.failed.items():
            if peer in serving:
                yield f"{process} cannot pull from {serving[peer]}: {reason}"


def memory_that_ran_out_is_said(run: "SeedRun") -> Iterator[str]:
    """The supervisor tells a process that the kernel killed for want of memory from one that was killed otherwise."""
    site = run.site
    if site.oom_said != site.oom_kills:
        yield f"it says so of {site.oom_said} exits, and there were {site.oom_kills}"


def a_page_of_metrics_has_all_proxies(run: "SeedRun") -> Iterator[str]:
    """Each proxy shows the metrics of all that could leave their pages, whatever their clocks of the day say."""
    if any(fault.kind in ("full", "slow disk", "stop") for fault in run.faults):
        return
    for process in run.site.proxies:
        assert process.proxy is not None
        pages = process.proxy.fleet.pages
        with process.inside():
            page = b"" if pages is None else pages.beside(pages.render())
        for other in run.site.proxies:
            if pages is not None and b'proxy="%b"' % other.name.encode() not in page:
                yield f"{process} shows none of {other}"


def no_thread_failed(run: "SeedRun") -> Iterator[str]:
    """No thread, task or handler of any process ended by an exception of ours."""
    yield from run.world.failures


CHECKS: tuple[Check, ...] = (
    tokens_equal_the_oracle,
    texts_equal_the_oracle,
    vectors_equal_the_oracle,
    scores_equal_the_oracle,
    sounds_equal_the_oracle,
    counts_equal_the_plain_run,
    events_come_in_their_order,
    a_stream_goes_on_within_its_window,
    a_late_reader_has_all_or_nothing,
    usage_equals_deliveries,
    usage_says_the_class,
    the_usage_log_has_each_request_once,
    each_line_has_one_outcome_and_one_bill,
    who_was_refused_is_not_billed,
    no_row_is_open_without_a_record,
    the_audit_is_equal,
    a_leased_token_is_hit_or_refunded,
    byte_seconds_are_conserved,
    a_lease_that_moves_is_billed_once,
    receipts_are_true,
    a_lease_that_no_answer_named_is_held_by_nobody,
    *ADAPTER_CHECKS,
    nobody_waits_past_a_deadline,
    one_token_comes_soon_beside_many,
    limits_are_those_of_the_key,
    who_waits_as_told_is_let_in,
    nothing_is_left_two_seconds_after_the_last_fault,
    every_plan_is_carried_out_and_answered,
    every_rank_holds_what_the_prefix_cache_names,
    the_service_is_whole_again,
    proxies_know_the_room,
    peers_that_live_are_not_lost,
    memory_that_ran_out_is_said,
    every_change_ends,
    all_work_in_their_roles_again,
    a_gate_tells_right_from_wrong,
    who_asked_a_leaving_proxy_has_an_answer,
    hostile_requests_have_a_defined_answer,
    a_page_of_metrics_has_all_proxies,
    no_thread_failed,
)

# Checks that hold once a process that begins to serve has met the others, and its ranks have done what it ordered then.
JOINED: tuple[Check, ...] = (
    the_service_is_whole_again, all_know_the_same_adapters, every_plan_is_carried_out_and_answered,
)  # fmt: skip

LATE_CHECKS: tuple[Check, ...] = (nothing_outlives_its_window,)
