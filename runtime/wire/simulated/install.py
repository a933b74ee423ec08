# SPDX-License-Identifier: Apache-2.0
"""Replacement of what virtual time stands for, in this process: before anything else of pontil is imported, since
modules keep what they import. The process can do nothing else afterwards."""

import errno
import os
import random
import secrets
import time
from typing import Any

import zmq
import zmq.utils.monitor

from pontil.runtime.wire.simulated.network import WireNetwork, WirePoller
from pontil.runtime.wire.simulated.virtual_time import HERE, VirtualWorld
from pontil.runtime.wire.simulated.wire_sockets import WireContext, recv_monitor_message

FIRST_WAKEUP = 2_000_000


def enter(world: VirtualWorld) -> None:
    """Make a world the one that all stand-ins refer to."""
    HERE.enter(world)
    world.network = WireNetwork(world)


def install() -> None:
    """Replace clock, randomness, zmq and event descriptors."""
    install_clock()
    install_randomness()
    install_events()
    # Modules read these when they are called.
    replaced: list[tuple[Any, str, Any]] = [
        (zmq, "Context", WireContext),
        (zmq, "Poller", WirePoller),
        (zmq.utils.monitor, "recv_monitor_message", recv_monitor_message),
    ]
    for owner, name, stand_in in replaced:
        setattr(owner, name, stand_in)
    # For what asks for the time while it is imported.
    enter(VirtualWorld(0))


def install_clock() -> None:
    """Replace every clock: prometheus_client and asyncio take theirs by name when they are imported."""

    def clock() -> float:
        # As `SeededWorld.now`: half of all calls of it come from here.
        world = HERE.world
        current = world.current
        return world.time if current is None else world.time + current.ahead

    time.monotonic = time.perf_counter = clock
    time.monotonic_ns = time.perf_counter_ns = lambda: int(HERE.world.now() * 1e9)
    time.time = lambda: HERE.world.of_the_day()
    time.time_ns = lambda: int(HERE.world.of_the_day() * 1e9)


def install_randomness() -> None:
    """Replace the system's randomness; `random` itself has a seed."""

    def chance() -> random.Random:
        return HERE.world.random("secrets")

    secrets.token_bytes = lambda nbytes=None: chance().randbytes(nbytes or 32)
    secrets.token_hex = lambda nbytes=None: chance().randbytes(nbytes or 32).hex()
    secrets.randbits = lambda k: chance().getrandbits(k)
    secrets.randbelow = lambda exclusive_upper_bound: chance().randrange(exclusive_upper_bound)
    secrets.choice = lambda seq: chance().choice(seq)


def install_events() -> None:
    """Have an event descriptor be a number of the world, whose change wakes its process."""

    def eventfd(initval: int = 0, flags: int = 0) -> int:
        made = FIRST_WAKEUP + len(HERE.world.wakers)
        HERE.world.wakeups[made] = initval
        HERE.world.wakers[made] = HERE.world.current
        return made

    def check(descriptor: int) -> None:
        if descriptor not in HERE.world.wakeups:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    def eventfd_write(descriptor: int, value: int) -> None:
        check(descriptor)
        HERE.world.wakeups[descriptor] += value
        waker = HERE.world.wakers[descriptor]
        if waker is not None:
            waker.notify()

    def eventfd_read(descriptor: int) -> int:
        check(descriptor)
        value, HERE.world.wakeups[descriptor] = HERE.world.wakeups[descriptor], 0
        if not value:
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return value

    close = os.close

    def closed(descriptor: int) -> None:
        if HERE.world.wakeups.pop(descriptor, None) is None:
            close(descriptor)

    replace_in_os(close=closed, eventfd=eventfd, eventfd_write=eventfd_write, eventfd_read=eventfd_read)


def replace_in_os(**stand_ins: Any) -> None:
    for name, stand_in in stand_ins.items():
        setattr(os, name, stand_in)
