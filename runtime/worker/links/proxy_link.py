# SPDX-License-Identifier: Apache-2.0
"""A worker's connection to the proxy: registration, heartbeats, and an outbox that never drops a message."""

import logging
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pontil.runtime.errors import IncompatiblePeer
from pontil.runtime.wire.codec import joined
from pontil.runtime.wire.links.renewal import Renewal
from pontil.runtime.wire.links.sockets import WorkerSocket
from pontil.runtime.wire.messages import (
    Goodbye,
    Heartbeat,
    Hello,
    Message,
    Refused,
    RoleChange,
    StillHere,
    Tokens,
    Welcome,
)

logger = logging.getLogger("pontil.worker")

BEAT = 0.5
# Longer than a proxy may be silent while it computes before its supervisor replaces it (docs/decisions/030).
TTL = 40.0
HELLO_AGAIN = 1.0
# An iteration that took this long had a long step: this worker did not listen, so the silence is no fault of the proxy.
LATE = 1.0


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure of an attempt, as reported to the proxy. `moved`: another worker is to continue the request. `late`:
    its deadline passed before anything was computed."""

    reason: str
    status: int
    moved: bool = False
    late: bool = False


@dataclass(frozen=True, slots=True)
class HeartbeatLoad:
    """The contents of a heartbeat."""

    running: int
    waiting: int
    free_blocks: int
    step: int
    counters: dict[str, int]
    gauges: dict[str, int] | None = None
    others: dict[str, int] | None = None
    lost_peers: tuple[str, ...] = ()


@dataclass(slots=True)
class ToldCounts:
    """The tokens of which a worker has told one proxy, and its successors: generated, and computed of prompts for the
    first time. A proxy's ledger begins when the worker registers there: earlier tokens, `…_before`, were told to a
    predecessor."""

    generated: int = 0
    computed: int = 0
    generated_before: int = 0
    computed_before: int = 0

    def tell(self, generated: int, computed: int) -> None:
        self.generated += generated
        self.computed += computed

    def counters(self) -> dict[str, int]:
        """Return the counts under their names in heartbeats."""
        return {
            "generated_tokens": self.generated,
            "generated_before": self.generated_before,
            "prompt_tokens_computed": self.computed,
            "prompt_tokens_computed_before": self.computed_before,
        }

    def begin(self) -> None:
        """Start counting for another proxy."""
        self.generated_before, self.computed_before = self.generated, self.computed


class ProxyLink:
    """The registration with a proxy and the messages to it. `proxy` is the incarnation that the worker is registered
    with, or None; `is_known` is true if that proxy has confirmed the current `hello`, or there is no proxy. One that
    accepts no message for `patience` is given up. The caller passes the time."""

    def __init__(self, socket: WorkerSocket, hello: Hello) -> None:
        self.socket, self.hello = socket, hello
        self.proxy: str | None = None
        # The proxy, and the number of the registration there; None: there is none.
        self.registration: tuple[str, int] | None = None
        self.is_known, self.takes_steps, self.takes_prefixes = True, False, False
        self.takes_times = self.takes_leases = self.takes_adapters = self.takes_step_logits = False
        self.outbox: deque[Message] = deque()
        self.told = ToldCounts()
        self.next_send = 0.0
        self.last_heard = self.last_tick = 0.0
        self.patience = math.inf
        self.congested_since: float | None = None
        self.renewal: Renewal | None = None
        self.breaks = 0

    @property
    def congested(self) -> bool:
        """Return whether the proxy accepts no messages at present: produce no more of them (back-pressure, B12). A
        proxy that is gone is told nothing but Hello, and holds up nobody."""
        return bool(self.outbox) and self.proxy is not None

    def send_tokens(self, frames: Sequence[Tokens]) -> None:
        for message in joined(frames, with_logits=self.takes_step_logits) if self.takes_steps else frames:
            self.send(message)

    def send(self, message: Message) -> None:
        if self.outbox or not self.socket.send(message):
            self.outbox.append(message)

    def offer(self, message: Message) -> bool:
        """Send a message that holds up no others; return False where it is not taken now."""
        return not self.outbox and self.socket.send(message)

    def flush(self) -> None:
        while self.outbox and self.socket.send(self.outbox[0]):
            self.outbox.popleft()

    def heard(self, message: Message, now: float) -> str | None:
        """Handle a message about registration. Return the incarnation of a proxy that is gone, if that is known now.

        Raises IncompatiblePeer when the proxy refuses this worker.
        """
        self.last_heard = now
        if self.renewal is not None:
            self.renewal.heard = True
        if isinstance(message, Refused):
            raise IncompatiblePeer(f"the proxy refused this worker: {message.reason}")
        if isinstance(message, Welcome):
            gone = self.proxy if self.proxy != message.sender else None
            self.registration = message.sender, self.hello.registration
            if self.proxy != message.sender:
                logger.info("registered with the proxy")
                self.told.begin()
                # The first heartbeat states what was generated before. Sent at once, less is lost if the proxy ends.
                self.next_send = 0.0
            self.proxy, self.takes_steps, self.takes_prefixes = message.sender, message.steps, message.prefixes
            self.takes_times, self.takes_leases = message.times, message.leases
            self.takes_adapters, self.takes_step_logits = message.adapters, message.step_logits
            # A proxy of an earlier version does not confirm the role.
            self.is_known = message.role is None or (message.role, message.draining) == (
                self.hello.role,
                self.hello.draining,
            )
            return gone
        if isinstance(message, StillHere) and self.proxy not in (None, message.sender):
            return self.forget()
        return None

    def tick(self, load: Callable[[], HeartbeatLoad], now: float) -> str | None:
        """Send Hello until welcomed, then heartbeats. Return the proxy if it has been silent, or accepted nothing, for
        too long, or the connection to it broke."""
        if self.outbox:
            self.flush()
        # As `congested`, of which nearly every turn says no.
        self.congested_since = (self.congested_since or now) if self.outbox and self.proxy is not None else None
        late, self.last_tick = now - self.last_tick > LATE, now
        if late:
            self.last_heard = now
        silent = self.proxy is not None and now - self.last_heard > TTL
        stuck = self.congested_since is not None and now - self.congested_since >= self.patience
        broken = self.has_broken(now)
        if broken and self.proxy is None:
            # The proxy may have heard the Hello, and what it sent since then is lost with the connection.
            self.register_anew()
        gone = self.forget() if broken and self.proxy is not None or silent or stuck else None
        if self.proxy is None:
            self.connect_again(now, at_once=gone is not None)
        if now >= self.next_send and (self.proxy is not None or not self.outbox):
            self.next_send = now + (HELLO_AGAIN if self.proxy is None else BEAT)
            self.send(self.hello if self.proxy is None else self.heartbeat(load(), self.proxy))
            self.send_role_change()
        return gone

    def has_broken(self, now: float) -> bool:
        """Return whether a connection to a proxy has ended since the last call: what was on its way either way may be
        lost."""
        before, self.breaks = self.breaks, self.socket.breaks(now)
        return self.breaks > before

    def connect_again(self, now: float, *, at_once: bool) -> None:
        """Replace a connection on which no proxy is heard, and say Hello on the new one."""
        if self.renewal is None or at_once:
            self.renewal = Renewal(now) if at_once else Renewal.begun(now)
        if self.renewal.is_due(now):
            if not at_once:
                # The proxy may have heard the Hello by now, and sent what nobody reads any more.
                self.register_anew()
            self.socket.renew(now)
            self.renewal.renewed(now)

    def limit_seats(self, seats: int | None) -> None:
        """Register with at most so many seats. Called before the first Hello."""
        if seats is not None:
            self.hello = replace(self.hello, max_num_seqs=min(self.hello.max_num_seqs, seats))

    def turn_to(self, role: str, draining: bool) -> None:
        """Change the role and the draining flag. The proxy is told at once, and again until it confirms."""
        self.hello = replace(self.hello, role=role, draining=draining)
        self.is_known = self.proxy is None
        self.send_role_change()

    def send_role_change(self) -> None:
        if self.proxy is not None and not self.is_known:
            self.send(RoleChange(self.hello.sender, self.proxy, self.hello.role, self.hello.draining))

    def heartbeat(self, load: HeartbeatLoad, proxy: str) -> Heartbeat:
        return Heartbeat(
            self.hello.sender, proxy, load.running, load.waiting, load.free_blocks, load.step, load.counters,
            load.gauges, load.others, list(load.lost_peers),
        )  # fmt: skip

    def forget(self) -> str | None:
        """Forget the proxy, which is gone, and discard the messages queued for it. Return its incarnation."""
        gone, self.proxy, self.is_known = self.proxy, None, True
        self.renewal = self.congested_since = None
        self.register_anew()
        return gone

    def register_anew(self) -> None:
        """Have the next Hello be that of another registration, so that a proxy gives up what it sent to this one."""
        self.hello = replace(self.hello, registration=self.hello.registration + 1)
        self.registration = None
        self.next_send = 0.0
        self.outbox.clear()

    def hurry(self) -> None:
        """Send the next heartbeat at once."""
        self.next_send = 0.0

    def goodbye(self, *, drained: bool, for_good: bool) -> None:
        if self.proxy is not None:
            self.send(Goodbye(self.hello.sender, self.proxy, drained, for_good))
        self.flush()
