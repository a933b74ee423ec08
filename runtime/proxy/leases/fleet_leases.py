# SPDX-License-Identifier: Apache-2.0
"""The leases of a fleet: what workers say of those that they hold, and what clients and time do to them.

A worker's book says what is kept; each proxy has a view of all of it, so that any of them answers for a lease. The one
that a lease names bills it. When a worker dies, its leases wait for its successor, which may find their blocks: this
view has the keys, and is the journal from which the successor keeps them again. What is not found is refunded.
"""

import logging
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from pontil.runtime.accounting.ledger import LeaseTotals
from pontil.runtime.cache.leases.lease import EXPIRED, HELD, REFUNDED, RELEASED, LeaseTerm
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import RequestError
from pontil.runtime.proxy.fleet.registered_worker import RegisteredWorker
from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.proxy.leases.lease_quota import LeaseQuota
from pontil.runtime.proxy.leases.lease_view import MOST_BYTE_SECONDS, LeaseView, check_state, prompt_of
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper
from pontil.runtime.proxy.requests.lease_wish import LeaseWish
from pontil.runtime.proxy.routing.held_prefixes import MovingPrefixes
from pontil.runtime.proxy.routing.prompt_prefix import PromptPrefix
from pontil.runtime.wire.lease_messages import EXTEND, LET_GO, MOVED, REFUND, REFUSED, RELEASE, RESUME
from pontil.runtime.wire.messages import Hello, LeaseOrder, LeaseState, LeasesTold, Message

LOG = logging.getLogger("pontil.proxy")
# Leases that are over and can still be asked for.
REMEMBERED = 4096
# The names of leases that clients asked for, and of those that came beside an answer, begin so.
ASKED, BESIDE = "prefix", "cache"
# The device whose memory may outlive a worker: nobody waits for what a GPU had.
HOST_DEVICE = "cpu"
LEFT, DIED, GONE, NOT_FOUND = (
    "its worker left for good",
    "its worker ended, and no other process came in its place",
    "its worker does not hold it any more",
    "its worker ended, and its successor did not find all of it",
)


class FleetLeases:
    """The view of one proxy. `views` has all leases that are held, and the last ones that are over; `wishes` those that
    open requests ask for."""

    def __init__(
        self,
        config: ProxyConfig,
        incarnation: str,
        registry: Registry,
        books: Bookkeeper,
        clock: Callable[[], float],
        send: Callable[[Message], bool],
    ) -> None:
        self.config, self.incarnation, self.registry = config, incarnation, registry
        self.books, self.clock, self.send = books, clock, send
        self.views: dict[str, LeaseView] = {}
        self.over: dict[str, LeaseView] = {}
        # Held ones, by group, owner and the key of the last block: equal ids have equal keys in every model.
        self.ends: dict[tuple[str | None, str, int], LeaseView] = {}
        self.wishes: dict[str, LeaseWish] = {}
        # Leases that nobody was told of, should a worker grant them: their requests ended before.
        self.unwanted: dict[str, None] = {}
        self.quota = LeaseQuota(registry, self.views, config.lease_client_memory)
        # When leases that this proxy has not heard of are lost; None: they were written off.
        self.settles_at: float | None = clock() + config.failover_timeout

    def wish(self, group: str | None, owner: str, seconds: int, tokens: int, *, must: bool) -> LeaseWish:
        """Return a wish for a lease, for a request to this group that will be submitted."""
        name = f"{ASKED if must else BESIDE}-{secrets.token_hex(12)}"
        has_room = partial(self.quota.has_room, tokens)
        return LeaseWish(name, group, owner, seconds, tokens, must, self.wishes, has_room, self.disown)

    def settle(self, wish: LeaseWish, prefix: PromptPrefix | None) -> None:
        """Extend the lease of this key that there is on the same beginning, so that a repeated turn makes no second
        one. Else see whether there is room for a new one, which takes the place of those that came beside earlier turns
        of a conversation; without room the longest of these is extended."""
        now, blocks = self.clock(), 0
        keys: tuple[int, ...] = ()
        if prefix is not None:
            blocks = wish.tokens // prefix.block_size
            keys = tuple(prefix.keys[:blocks])
        ends = [self.ends.get((wish.group, wish.owner, key)) for key in keys]
        found = [view for view in ends if view is not None and now < view.term.end]
        try:
            if found and len(keys) == blocks and found[-1].last_key == keys[-1]:
                self.extend(found[-1], wish.seconds)
                wish.renew(found[-1].id, found[-1].term.size)
            else:
                self.quota.check_room(wish.group, wish.owner, wish.tokens, now)
                wish.covers = tuple(view.id for view in found if view.id.startswith(BESIDE))
        except RequestError as error:
            wish.refuse(str(error))
            # One that is too short is refused for no want of room.
            self.quota.refusals += error.status != 400
            if found:
                self.extend(found[-1], wish.seconds)

    def granted(self, wish: LeaseWish) -> LeaseView:
        """Return the lease that a request got, which has ended. Raises RequestError where it got none."""
        view = self.views.get(wish.id) or self.over.get(wish.id)
        if view is None:
            raise RequestError(wish.reason or "its worker did not keep the prefix: try again", status=429)
        return view

    def find(self, owner: str, name: str) -> LeaseView:
        """Return a lease of a key. Raises RequestError where there is none, or it is another key's."""
        view = self.views.get(name) or self.over.get(name)
        if view is None or view.owner != owner:
            raise RequestError(f"there is no prefix {name!r:.80} of this key", status=404, code="not_found")
        return view

    def owned_by(self, owner: str) -> list[LeaseView]:
        """Return the leases that a key holds, the oldest first."""
        return [view for view in self.views.values() if view.owner == owner]

    def extend(self, view: LeaseView, seconds: int) -> None:
        """Grant a lease for so many seconds from now on, at least. Raises RequestError if it is over."""
        now = self.clock()
        if not view.is_held or now >= view.term.end:
            raise RequestError(f"the prefix is {view.term.state if not view.is_held else EXPIRED}", status=409)
        total = view.term.lasting(seconds, now)
        if total * view.term.size > MOST_BYTE_SECONDS:
            raise RequestError("the prefix would be kept for longer than anything can be billed", param="ttl")
        view.term.seconds = total
        self.order(view, EXTEND)
        self.note(view)

    def release(self, view: LeaseView) -> None:
        """End a lease at its client's wish; of one that is over nothing changes."""
        if view.is_held:
            self.order(view, RELEASE)
            self.close(view, RELEASED, self.clock())

    def disown(self, wish: LeaseWish) -> None:
        """Give up a lease whose request failed: nobody was told of it."""
        self.unwanted[wish.id] = None
        while len(self.unwanted) > REMEMBERED:
            del self.unwanted[next(iter(self.unwanted))]
        if (view := self.views.get(wish.id)) is not None:
            self.release(view)

    def let_go(self, view: LeaseView, worker: str, moves: int) -> None:
        """Have a worker let go of a lease that another one took by so many moves."""
        self.send(LeaseOrder(self.incarnation, worker, view.id, LET_GO, view.term.seconds, moves=moves))

    def order(self, view: LeaseView, action: str) -> None:
        if view.worker is not None:
            self.send(LeaseOrder(self.incarnation, view.worker, view.id, action, view.term.seconds))

    def on_state(self, message: LeaseState) -> None:
        """Take what a worker says of a lease. Raises MalformedFrame."""
        worker = self.registry.workers.get(message.sender)
        check_state(message)
        if worker is None:
            self.ended_before(message)
        elif message.state == REFUSED:
            self.refused(message, worker)
        elif message.state != HELD:
            self.ended(message, worker)
        elif (action := self.ending(message.lease_id)) is not None:
            self.send(LeaseOrder(self.incarnation, message.sender, message.lease_id, action))
        else:
            self.over.pop(message.lease_id, None)
            self.take_held(message, worker)

    def ending(self, name: str) -> str | None:
        """Return what a worker is told of a lease that it holds, if that is over: at its client's wish, or because this
        proxy, which billed it, has ended it. What is over for another reason is so here alone: this proxy was told no
        more of it, and hears now that whoever bills it goes on with it."""
        view = self.over.get(name)
        if name in self.unwanted or (view is not None and view.term.state == RELEASED):
            return RELEASE
        return REFUND if self.has_billed(name) else None

    def has_billed(self, name: str) -> bool:
        """Return whether this proxy has written the end of a lease."""
        view = self.over.get(name)
        return view is not None and view.proxy == self.incarnation

    def refused(self, message: LeaseState, worker: RegisteredWorker) -> None:
        """Take note that a worker does not keep a lease. One that was lost is refunded if its worker's successor says
        so, and not another one that it was to follow a prompt to."""
        view, wish = self.views.get(message.lease_id), self.wishes.get(message.lease_id)
        if wish is not None:
            wish.reason = message.reason
            self.quota.refusals += not wish.must
        elif view is not None and view.is_lost and (view.group, view.worker_name) == (worker.group, worker.hello.name):
            self.close(view, REFUNDED, view.lost, NOT_FOUND)

    def ended(self, message: LeaseState, worker: RegisteredWorker) -> None:
        """End a lease as its worker says: one of this view, or one of which the proxy that billed it did not hear."""
        view = self.views.get(message.lease_id)
        if message.reason == MOVED:
            # Its new worker may be heard later: until then nobody is known to have it, and no process in this one's
            # place is to keep it.
            if view is not None and view.worker == message.sender:
                view.worker, view.worker_name, view.lost = None, "", self.clock()
                view.pin(self.moving(worker))
            return
        if view is None and message.proxy == self.incarnation and not self.has_billed(message.lease_id):
            view = self.see(message, worker)
        if view is not None and view.worker == message.sender:
            self.close(view, message.state, view.term.began + message.age, message.reason)

    def ended_before(self, message: LeaseState) -> None:
        """End a lease as the worker said with which it was lost: its last words may come after the news of its end."""
        view = self.views.get(message.lease_id)
        is_over = message.state not in (HELD, REFUSED) and message.reason != MOVED
        if is_over and view is not None and view.is_lost and view.last_worker == message.sender:
            self.close(view, message.state, view.term.began + message.age, message.reason)

    def take_held(self, message: LeaseState, worker: RegisteredWorker) -> None:
        """Take note of a lease that a worker holds: a new one, one that it holds again, or one that changed."""
        now, name = self.clock(), message.lease_id
        view, wish = self.views.get(name), self.wishes.get(name)
        if view is None:
            view = self.see(message, worker)
        if not view.yields_to(message, worker.hello.name):
            # It said so before it heard that another one has it.
            self.let_go(view, message.sender, view.moves + (message.moves == view.moves))
            return
        if view.worker != message.sender:
            if view.worker is not None:
                self.let_go(view, view.worker, message.moves + (message.moves == view.moves))
            if view.worker is not None and (view.proxy != self.incarnation or wish is not None):
                # Another attempt of its request has it: what the first worker held was nobody's. Or another proxy had
                # it moved, and the new worker says when it began. It may not have heard how long this one granted it.
                view.term = LeaseTerm(message.size, now - message.age, max(view.term.seconds, message.seconds))
            view.worker, view.worker_name, view.lost = message.sender, worker.hello.name, None
        view.moves = message.moves
        if message.prompt:
            view.prompt = prompt_of(message)
        view.proxy, view.term.seconds = message.proxy, max(view.term.seconds, message.seconds)
        if view.term.seconds > message.seconds:
            self.order(view, EXTEND)
        view.pin(worker.prefixes)
        if wish is not None:
            wish.grant(message.size, message.tokens)
            self.take_place(wish, view.term.end)
        self.note(view)

    def take_place(self, wish: LeaseWish, end: float) -> None:
        """Release the leases that a new one, until that time, covers for as long as they last."""
        for name in wish.covers:
            if (covered := self.views.get(name)) is not None and covered.term.end <= end:
                self.release(covered)
        wish.covers = ()

    def see(self, message: LeaseState, worker: RegisteredWorker) -> LeaseView:
        """Return a view of a lease that a worker has told of for the first time."""
        term = LeaseTerm(message.size, self.clock() - message.age, message.seconds)
        view = self.views[message.lease_id] = LeaseView(
            message.lease_id,
            message.owner,
            message.tokens,
            message.proxy,
            worker.hello.name,
            message.sender,
            term,
            time.time() - message.age,
            message.keys,
            moves=message.moves,
            group=worker.group,
        )
        self.ends.setdefault((view.group, view.owner, view.last_key), view)
        return view

    def on_told(self, message: LeasesTold) -> None:
        """Refund the leases that a worker should hold, and does not: it has told all that it has."""
        held = set(message.lease_ids)
        for view in [view for view in self.views.values() if view.worker == message.sender and view.id not in held]:
            self.close(view, REFUNDED, self.clock(), GONE)

    def came(self, message: Hello) -> None:
        """Have a worker that has registered keep the leases again that were lost with an earlier process of its name.
        It hears of them before any request, which might take their blocks."""
        for view in self.lost_with(self.registry.group_at(message.sender), message.name):
            self.resume(view, message.sender, view.moves)

    def lost_with(self, group: str | None, name: str) -> list[LeaseView]:
        """Return the leases that were lost with a worker of this name."""
        return [one for one in self.views.values() if one.is_lost and (one.group, one.worker_name) == (group, name)]

    def resume(self, view: LeaseView, worker: str, moves: int) -> None:
        """Have a worker keep a lease, if it has the blocks."""
        about = view.id, RESUME, view.term.seconds, view.owner, view.keys, self.age(view)
        prompt, directory, start = view.prompt.fields, view.prompt.directory, view.prompt.adapted.start
        self.send(LeaseOrder(self.incarnation, worker, *about, *prompt, moves, directory, start))

    def age(self, view: LeaseView) -> float:
        return max(0.0, self.clock() - view.term.began)

    def is_moving(self, view: LeaseView) -> bool:
        """Return whether a lease is on its way to another process, or has to be: a worker that drains serves nobody."""
        worker = self.registry.workers.get(view.worker or "")
        return view.is_held and (worker is None or worker.hello.draining)

    def moving(self, worker: RegisteredWorker) -> MovingPrefixes:
        """Return what routing knows of leases that this worker had, and the next one of its release is to have."""
        return self.registry.of(worker.group).moving[worker.release]

    def lost(self, worker: RegisteredWorker) -> None:
        """Take note that a worker is gone. Where no process will come in its place, what was held is refunded."""
        outlives = worker.hello.device == HOST_DEVICE
        held = [view for view in self.views.values() if view.worker == worker.hello.sender]
        for view in held:
            view.last_worker, view.worker = view.worker, None
            view.lost = max(view.term.began, min(self.clock(), worker.contact.last_heard))
            view.pin(self.moving(worker) if outlives else None)
        if worker.contact.last:
            for view in self.lost_with(worker.group, worker.hello.name):
                self.close(view, REFUNDED, view.lost, LEFT)
            return
        # The next process may have come before the news of this one's end.
        for one in self.registry.workers.values():
            if (one.group, one.hello.name) == (worker.group, worker.hello.name) and one is not worker:
                for view in held:
                    self.resume(view, one.hello.sender, view.moves)

    def tick(self) -> None:
        """End what is over, and refund what no worker holds for too long."""
        now = self.clock()
        for view in list(self.views.values()):
            if now >= view.term.end:
                # One that is lost is over as one that was held: its bytes were kept, or it is refunded.
                self.close(view, REFUNDED if view.is_lost else EXPIRED, view.lost if view.is_lost else now, DIED)
            elif view.lost is not None and now - view.lost > self.config.failover_timeout:
                self.close(view, REFUNDED, view.lost, DIED)
        if self.settles_at is not None and now >= self.settles_at:
            self.settles_at = None
            self.books.lose_leases(list(self.views))

    def close(self, view: LeaseView, state: str, at: float | None, reason: str | None = None) -> None:
        """End a lease in this view. If this proxy bills it, its row is written for the last time."""
        view.term.close(state, self.clock() if at is None else at, reason)
        view.pin(None)
        del self.views[view.id]
        end = view.group, view.owner, view.last_key
        if self.ends.get(end) is view:
            del self.ends[end]
        self.over[view.id] = view
        while len(self.over) > REMEMBERED:
            del self.over[next(iter(self.over))]
        if view.term.state == REFUNDED:
            LOG.warning("the prefix %s is refunded: %s", view.id, view.term.reason)
        self.note(view)

    def note(self, view: LeaseView) -> None:
        if view.proxy == self.incarnation:
            self.books.note_lease(view.row(self.model_of(view), self.clock()))

    def model_of(self, view: LeaseView) -> str:
        """Return the name of a lease's model: the one that it is billed to."""
        return view.group or self.config.served_model_name

    def end(self) -> None:
        """Write what is held of each lease so far. It stays open: another proxy may go on with it."""
        for view in self.views.values():
            self.note(view)

    def rows(self) -> list[dict[str, Any]]:
        """Return what each key holds: leases, their tokens and bytes, and the seconds until the last one ends."""
        rows: dict[str, dict[str, Any]] = {}
        now = self.clock()
        for view in self.views.values():
            row = rows.setdefault(view.owner, {"key": view.owner, "leases": 0, "tokens": 0, "bytes": 0, "seconds": 0})
            row["leases"] += 1
            row["tokens"] += view.tokens
            row["bytes"] += view.term.size
            row["seconds"] = max(row["seconds"], int(view.term.end - now))
        return list(rows.values())

    @property
    def billed_here(self) -> list[LeaseView]:
        """The leases that are held and that this proxy bills."""
        return [view for view in self.views.values() if view.proxy == self.incarnation]

    @property
    def held(self) -> tuple[int, int]:
        """The number of these, and their bytes."""
        views = self.billed_here
        return len(views), sum(view.term.size for view in views)

    @property
    def refusals(self) -> int:
        return self.quota.refusals

    def amounts(self) -> LeaseTotals:
        """Return what became of the byte-seconds that this proxy bills, held ones until now among them."""
        sums, now = replace(self.books.ledger.leases), self.clock()
        for view in self.billed_here:
            of_view = view.term.amounts(now)
            sums.add(of_view.granted, of_view.held, of_view.released, of_view.refunded)
        return sums
