# SPDX-License-Identifier: Apache-2.0
"""The state of handoff_model.py as an immutable value, with functions that change parts of it."""

from typing import Any, NamedTuple

from search import Violation

from pontil.runtime.disaggregation.states import RECEIVING_ENDS, ReceiveState, SendAction, SendState

BLOCKS = 3
FREE = 0
FIRST_EPOCHS = (0, 1)

Blocks = tuple[int, ...]


class ModelSend(NamedTuple):
    """A transfer on the prefill side. `owner` is the content of its blocks. `timed`: a deadline is set."""

    state: SendState
    slot: int
    epoch: int
    owner: int
    blocks: Blocks = ()
    timed: bool = True


class ModelPull(NamedTuple):
    """An open pull. `lost`: it reads memory of a dead process that is still mapped. `reports`: ranks whose halves have
    ended, in the order in which their reports came, and whether the halves arrived whole."""

    theirs: Blocks
    ours: Blocks
    owner: int
    cancelled: bool = False
    lost: bool = False
    reports: tuple[tuple[int, bool], ...] = ()


class ModelReceive(NamedTuple):
    state: ReceiveState
    credits: int
    epoch: int = 0
    slot: int = 0
    blocks: Blocks = ()
    pulls: tuple[ModelPull, ...] = ()
    handoff: bool = False
    error: bool = False
    owner: int = FREE


class Message(NamedTuple):
    kind: str
    epoch: int = 0
    slot: int = 0
    first: int = 0
    blocks: Blocks = ()
    owner: int = FREE
    lost: bool = False


TO_SENDER = frozenset({"begin", "fetched"})


class Transfer(NamedTuple):
    """One transfer. `wanted` until the decode side has begun it. `opened` counts how often the prefill side has opened
    it. `whole` is the owner whose blocks the decode side has verified. The prompt of one that is `kept` is computed
    before the decode side asks, or after that; asking is then a claim."""

    size: int
    kept: bool = False
    wanted: bool = True
    opened: int = 0
    whole: int = 0
    sent: ModelSend | None = None
    received: ModelReceive | None = None
    wire: frozenset[Message] = frozenset()


class RankOrder(NamedTuple):
    """An order to the second prefill rank: to bump a cell, to write blocks, or to publish those of a message."""

    kind: str
    slot: int = 0
    epoch: int = 0
    blocks: Blocks = ()
    owner: int = FREE
    number: int = 0
    message: Message | None = None


class GivingRank(NamedTuple):
    """The second prefill rank: the contents of its blocks, its cells, and the orders that it has not carried out."""

    contents: Blocks = (FREE,) * BLOCKS
    epochs: tuple[int, ...] = FIRST_EPOCHS
    orders: tuple[RankOrder, ...] = ()
    dead: bool = False


class HandoffWorld(NamedTuple):
    """The whole state. `agenda` holds the prefill side's pending actions of a row: the transfer's number, its send, the
    actions. `behind` is the second prefill rank, of workers with two; `deaf`: the second decode rank is dead.
    `strays`: transfers and blocks that a copier still writes to though its pull counts as ended."""

    transfers: tuple[Transfer, ...]
    theirs: Blocks = (FREE,) * BLOCKS
    ours: Blocks = (FREE,) * BLOCKS
    epochs: tuple[int, ...] = FIRST_EPOCHS
    slots: tuple[int, ...] = (0, 1)
    agenda: tuple[int, ModelSend, tuple[SendAction, ...]] | None = None
    crashes: int = 1
    repeats: int = 1
    behind: GivingRank | None = None
    deaf: bool = False
    strays: tuple[tuple[int, Blocks], ...] = ()

    def put(self, number: int, **changes: Any) -> "HandoffWorld":
        mine = self.transfers[number]._replace(**changes)
        return self._replace(transfers=(*self.transfers[:number], mine, *self.transfers[number + 1 :]))

    def send(self, number: int, message: Message) -> "HandoffWorld":
        return self.put(number, wire=self.transfers[number].wire | {message})


def set_owner(pool: Blocks, blocks: Blocks, owner: int) -> Blocks:
    return tuple(owner if block in blocks else held for block, held in enumerate(pool))


def pick(pool: Blocks, count: int) -> Blocks:
    return tuple(block for block, held in enumerate(pool) if held == FREE)[:count]


def at_rest(world: HandoffWorld) -> bool:
    """Return whether no transfer holds anything and all blocks and slots are free."""
    over = all(one.sent is None and one.received is None for one in world.transfers)
    free = set(world.theirs) == set(world.ours) == {FREE} and sorted(world.slots) == [0, 1]
    behind = world.behind is None or (not world.behind.orders and set(world.behind.contents) == {FREE})
    alive = not world.deaf and not (world.behind and world.behind.dead)
    return over and free and behind and alive and world.agenda is None


def open_send(world: HandoffWorld, number: int, one: Transfer) -> HandoffWorld:
    slot, *rest = world.slots
    owner = 1 + number + len(world.transfers) * one.opened
    state = SendState.PREPARING if one.kept else SendState.COMPUTING
    sent = ModelSend(state, slot, world.epochs[slot], owner)
    repeats = world.repeats - bool(one.opened)
    return world.put(number, sent=sent, opened=one.opened + 1)._replace(slots=tuple(rest), repeats=repeats)


def compute(world: HandoffWorld, number: int, one: Transfer, sent: ModelSend) -> HandoffWorld:
    """Allocate blocks for the whole prompt and compute all but the last."""
    sent = sent._replace(blocks=pick(world.theirs, one.size))
    world = world.put(number, sent=sent)._replace(theirs=set_owner(world.theirs, sent.blocks, sent.owner))
    return ordered(world, RankOrder("write", blocks=sent.blocks, owner=sent.owner))


def ordered(world: HandoffWorld, order: RankOrder) -> HandoffWorld:
    """Give the second prefill rank an order, if there is one."""
    behind = world.behind
    return world if behind is None else world._replace(behind=behind._replace(orders=(*behind.orders, order)))


def announcement(kind: str, sent: ModelSend, first: int, blocks: Blocks) -> Message:
    return Message(kind, sent.epoch, sent.slot, first, blocks, sent.owner)


def start_lease(world: HandoffWorld, number: int, sent: ModelSend) -> HandoffWorld:
    held = world.transfers[number].sent
    assert held is not None
    return world.put(number, sent=held._replace(timed=True))


def bump_epoch(world: HandoffWorld, number: int, sent: ModelSend) -> HandoffWorld:
    return world._replace(epochs=change_cell(world.epochs, sent.slot, max(world.epochs) + 1))


def change_cell(epochs: tuple[int, ...], slot: int, epoch: int) -> tuple[int, ...]:
    return tuple(epoch if number == slot else old for number, old in enumerate(epochs))


def received_of(world: HandoffWorld, number: int) -> ModelReceive:
    received = world.transfers[number].received
    assert received is not None
    return received


def change_received(world: HandoffWorld, number: int, **changes: Any) -> HandoffWorld:
    return world.put(number, received=received_of(world, number)._replace(**changes))


def room(world: HandoffWorld) -> int:
    """Return the number of blocks that are neither owned nor reserved."""
    return world.ours.count(FREE) - sum(one.received.credits for one in world.transfers if one.received)


def cancel_pulls(world: HandoffWorld, number: int) -> HandoffWorld:
    pulls = tuple(pull._replace(cancelled=True) for pull in received_of(world, number).pulls)
    return change_received(world, number, pulls=pulls)


def free_ours(world: HandoffWorld, number: int) -> HandoffWorld:
    blocks = received_of(world, number).blocks
    return change_received(world, number, credits=0)._replace(ours=set_owner(world.ours, blocks, FREE))


def promote(world: HandoffWorld, number: int) -> HandoffWorld:
    """Pass the blocks to the engine, which frees them at any time: here at once."""
    return free_ours(world, number).put(number, whole=received_of(world, number).owner)


def crash_receiver(world: HandoffWorld) -> HandoffWorld:
    gone = tuple(one._replace(received=None, wanted=False) if one.received else one for one in world.transfers)
    return world._replace(transfers=gone, ours=(FREE,) * BLOCKS, deaf=False, strays=())


def crash_sender(world: HandoffWorld) -> HandoffWorld:
    """Crash the prefill side. Open pulls, and those that its late messages lead to, read its memory as it was, since no
    process changes it any more. A pull of blocks released before the crash can only fail, so those messages are
    dropped."""
    gone = []
    for one in world.transfers:
        received = one.received
        if received is not None:
            stale = world.epochs[received.slot] != received.epoch
            pulls = tuple(pull._replace(lost=True, owner=FREE if stale else pull.owner) for pull in received.pulls)
            received = received._replace(pulls=pulls)
        wire = frozenset(
            message._replace(lost=True)
            for message in one.wire
            if message.kind not in TO_SENDER and (not message.blocks or world.epochs[message.slot] == message.epoch)
        )
        gone.append(one._replace(sent=None, received=received, wire=wire))
    return world._replace(
        transfers=tuple(gone), theirs=(FREE,) * BLOCKS, epochs=FIRST_EPOCHS, slots=(0, 1), agenda=None,
        behind=world.behind and GivingRank(),
    )  # fmt: skip


def check_pulls(world: HandoffWorld, number: int, one: Transfer) -> None:
    for pull in one.received.pulls if one.received else ():
        if any(world.ours[block] != number + 1 for block in pull.ours):
            raise Violation("a copier writes into blocks that were given back")
    for owner, blocks in world.strays:
        if any(world.ours[block] != owner + 1 for block in blocks):
            raise Violation("a copier writes into blocks that were given back")


def tidy(world: HandoffWorld) -> HandoffWorld:
    """Drop state that can no longer make a difference, so that equivalent worlds become equal. Of epochs only equality
    matters, and that new ones are larger."""
    transfers = []
    for one in world.transfers:
        received = (
            None if one.received and one.received.state in RECEIVING_ENDS and not one.received.pulls else one.received
        )
        opens_again = world.repeats and (one.kept or Message("begin") in one.wire)
        dead = set[str]() if one.sent or opens_again or not one.opened else set(TO_SENDER)
        if received is None and not one.wanted:
            dead |= {"chunk", "handoff"}
        wire = frozenset(message for message in one.wire if message.kind not in dead) if dead else one.wire
        whole = one.whole if one.sent else 0
        opens = one.kept and (not one.opened or world.repeats)
        over = not wire and not one.sent and not received and not one.wanted and not opens
        transfers.append(Transfer(0, wanted=False) if over else one._replace(received=received, wire=wire, whole=whole))
    return rank_epochs(world._replace(transfers=tuple(transfers)))


def rank_epochs(world: HandoffWorld) -> HandoffWorld:
    known = set(world.epochs)
    if world.behind is not None:
        known |= {*world.behind.epochs, *(order.epoch for order in world.behind.orders if order.kind == "bump")}
        known |= {order.message.epoch for order in world.behind.orders if order.message}
    for one in world.transfers:
        known |= {message.epoch for message in one.wire if message.kind != "begin"}
        if one.received and one.received.state is not ReceiveState.RESERVED:
            known.add(one.received.epoch)
    rank = {epoch: number for number, epoch in enumerate(sorted(known))}
    if all(epoch == number for epoch, number in rank.items()):
        return world
    transfers = []
    for one in world.transfers:
        sent = one.sent and one.sent._replace(epoch=rank[one.sent.epoch])
        received = one.received and one.received._replace(epoch=rank.get(one.received.epoch, 0))
        wire = frozenset(
            message if message.kind == "begin" else message._replace(epoch=rank[message.epoch]) for message in one.wire
        )
        transfers.append(one._replace(sent=sent, received=received, wire=wire))
    epochs = tuple(rank[epoch] for epoch in world.epochs)
    behind = world.behind and world.behind._replace(
        epochs=tuple(rank[epoch] for epoch in world.behind.epochs),
        orders=tuple(rank_order(order, rank) for order in world.behind.orders),
    )
    return world._replace(transfers=tuple(transfers), epochs=epochs, behind=behind)


def rank_order(order: RankOrder, rank: dict[int, int]) -> RankOrder:
    if order.message is not None:
        return order._replace(message=order.message._replace(epoch=rank[order.message.epoch]))
    return order._replace(epoch=rank[order.epoch]) if order.kind == "bump" else order
