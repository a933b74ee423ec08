# SPDX-License-Identifier: Apache-2.0
"""The second rank of each worker in handoff_model.py, and the rules that keep it in step with the first.

On the prefill side it carries out the driver's orders, one by one and as late as it likes: it computes blocks, makes
them readable, bumps its cell, overwrites what was freed. On the decode side it pulls its own half of each pull, and its
report may come late or twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from handoff_world import (
    FREE,
    Blocks,
    HandoffWorld,
    Message,
    ModelSend,
    RankOrder,
    bump_epoch,
    change_cell,
    ordered,
    set_owner,
)

from pontil.runtime.disaggregation.joint_pull import JointPull, PeerPools
from pontil.runtime.disaggregation.rank_orders import RankOrders
from pontil.runtime.transfer.connector import Pull, PullResult

# (rank, whether its half arrived whole), in the order in which they came
Reports = tuple[tuple[int, bool], ...]


@cache
def joint(reports: Reports) -> bool | None:
    """Return whether a pull in two halves was good, or None if it has not ended, by the product's own rule."""
    peer, pull = PeerPools(RankOrders(), lambda: 0.0), Pull("P", [(1, 1)], 0)
    whole = JointPull(pull, peer, 1, {0: range(1), 1: range(1, 2)})
    whole.wait()
    for rank, good in reports:
        whole.end(rank, PullResult(None if good else "broken", 0, 1, 0.0, [7]))
    return None if pull.result is None else pull.result.error is None


def announce(world: HandoffWorld, number: int, message: Message) -> HandoffWorld:
    """Announce blocks once every rank has made them readable."""
    if world.behind is None:
        return world.send(number, message)
    return ordered(world, RankOrder("publish", number=number, message=message))


def free_theirs(world: HandoffWorld, number: int, sent: ModelSend) -> HandoffWorld:
    """Free the blocks, which are overwritten at once, and by the second rank when it hears of it."""
    world = world._replace(theirs=set_owner(world.theirs, sent.blocks, FREE))
    return ordered(world, RankOrder("write", blocks=sent.blocks, owner=FREE))


def bump_both(world: HandoffWorld, number: int, sent: ModelSend) -> HandoffWorld:
    world = bump_epoch(world, number, sent)
    return ordered(world, RankOrder("bump", slot=sent.slot, epoch=world.epochs[sent.slot]))


def obey(world: HandoffWorld) -> HandoffWorld:
    """Let the second prefill rank carry out its first order."""
    behind = world.behind
    assert behind is not None
    order, orders = behind.orders[0], behind.orders[1:]
    world = world._replace(behind=behind._replace(orders=orders))
    if order.kind == "publish":
        assert order.message is not None
        sent = world.transfers[order.number].sent
        open_still = sent is not None and sent.epoch == order.message.epoch
        return world.send(order.number, order.message) if open_still else world
    return change_behind(world, order)


def change_behind(world: HandoffWorld, order: RankOrder) -> HandoffWorld:
    behind = world.behind
    assert behind is not None
    if order.kind == "bump":
        return world._replace(behind=behind._replace(epochs=change_cell(behind.epochs, order.slot, order.epoch)))
    return world._replace(behind=behind._replace(contents=set_owner(behind.contents, order.blocks, order.owner)))


def seen_by(world: HandoffWorld, rank: int) -> tuple[Blocks, tuple[int, ...]]:
    """Return the contents and the cells of a prefill rank, as its reader sees them."""
    if rank == 0:
        return world.theirs, world.epochs
    assert world.behind is not None
    return world.behind.contents, world.behind.epochs


Act = Callable[[HandoffWorld, int, ModelSend], HandoffWorld]


@dataclass(frozen=True)
class RankRules:
    """The rules of the product, each of which a test replaces by a wrong one."""

    joint: Callable[[Reports], bool | None] = joint
    announce: Callable[[HandoffWorld, int, Message], HandoffWorld] = announce
    bump: Act = bump_both
    free: Act = free_theirs
