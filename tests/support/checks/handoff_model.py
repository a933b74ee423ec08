# SPDX-License-Identifier: Apache-2.0
"""A small model of the handoff that follows the tables of runtime/disaggregation/states.py: one prefill and one decode
worker, three blocks in each pool, two transfers.

Its environment is as hostile as possible:

* The network keeps every message for ever and delivers any of them at any time, any number of times: this covers loss,
  delay, repetition and reordering.
* Time is not counted: a deadline may pass at any moment after it was set, and does pass eventually.
* A pull may succeed, fail, or never end; it reads its blocks and then the cell at any one moment while it is open.
* A freed block is overwritten at once.
* Between two actions of a row the other side may take any step, where an open pull could observe the difference.
* Either process may crash at any moment, and restarts with another incarnation: messages for the old one are dropped.
* The messages that open a transfer may be repeated, and may open it `repeats` more times.
* Workers may have two ranks (handoff_ranks.py): the second obeys late, reports late or twice, and fails or dies alone.
* Either side may drop a transfer at any moment. Withdrawn and Abandon have just this effect on the other side, so they
  are not modelled; nor is Renew, which only puts off what may happen at any moment.

A pull's copy and its read of the cell are one step: a wrong read needs the data after the blocks were freed and the
cell before it is bumped, and both moments lie between the same two actions.
"""

from collections.abc import Callable, Iterator
from functools import partial

from handoff_ranks import RankRules, obey, seen_by
from handoff_world import (
    FREE,
    TO_SENDER,
    HandoffWorld,
    Message,
    ModelPull,
    ModelReceive,
    ModelSend,
    Transfer,
    announcement,
    cancel_pulls,
    change_received,
    check_pulls,
    compute,
    crash_receiver,
    crash_sender,
    free_ours,
    open_send,
    pick,
    promote,
    received_of,
    room,
    set_owner,
    start_lease,
    tidy,
)
from search import SearchStep, Violation

from pontil.runtime.disaggregation.states import (
    RECEIVING_ENDS,
    SENDING_ENDS,
    ReceiveAction,
    ReceiveEvent,
    ReceiveState,
    ReceivingTable,
    SendAction,
    SendEvent,
    SendingTable,
    SendState,
)


class Handoffs:
    """The transitions of the model, by the given tables and, for workers of two ranks, rules."""

    def __init__(self, sending: SendingTable, receiving: ReceivingTable, rules: RankRules | None = None) -> None:
        self.sending, self.receiving, self.rules = sending, receiving, rules or RankRules()
        self.sender_acts: dict[SendAction, Callable[[HandoffWorld, int, ModelSend], HandoffWorld]] = {
            SendAction.START_LEASE: start_lease,
            SendAction.BUMP_EPOCH: self.rules.bump,
            SendAction.FREE_BLOCKS: self.rules.free,
            SendAction.FREE_SLOT: lambda world, number, sent: world._replace(slots=(*world.slots, sent.slot)),
        }
        self.receiver_acts: dict[ReceiveAction, Callable[[HandoffWorld, int], HandoffWorld]] = {
            ReceiveAction.CANCEL_PULLS: cancel_pulls,
            ReceiveAction.KEEP_BLOCKS: lambda world, number: change_received(world, number, credits=0),
            ReceiveAction.FREE_BLOCKS: free_ours,
            ReceiveAction.PROMOTE: promote,
            ReceiveAction.SEND_FETCHED: lambda world, number: world.send(
                number, Message("fetched", received_of(world, number).epoch)
            ),
            ReceiveAction.STOP_WORKER: lambda world, number: crash_receiver(world),
        }

    def steps(self, world: HandoffWorld) -> Iterator[SearchStep[HandoffWorld]]:
        for name, after, owed in self.all_steps(world):
            yield SearchStep(name, tidy(after), owed)

    def all_steps(self, world: HandoffWorld) -> Iterator[tuple[str, HandoffWorld, bool]]:
        for number, one in enumerate(world.transfers):
            check_pulls(world, number, one)
            yield from self.receiver_steps(world, number, one)
        if world.agenda is not None:
            yield "act", self.act(world), True
        else:
            for number, one in enumerate(world.transfers):
                yield from self.sender_steps(world, number, one)
            yield from self.rank_steps(world)
        if world.crashes:
            fewer = world._replace(crashes=world.crashes - 1)
            yield "prefill dies", crash_sender(fewer), False
            yield "decode dies", crash_receiver(fewer), False

    def rank_steps(self, world: HandoffWorld) -> Iterator[tuple[str, HandoffWorld, bool]]:
        """Yield the steps of the second ranks: they obey, or die, and then their workers end as a whole."""
        behind = world.behind
        if behind is None:
            return
        if behind.dead:
            yield "prefill ends", crash_sender(world), True
        elif behind.orders:
            yield "prefill's rank 1 obeys", obey(world), True
        if world.deaf:
            yield "decode ends", crash_receiver(world), True
        if world.crashes:
            fewer = world._replace(crashes=world.crashes - 1)
            yield "prefill's rank 1 dies", fewer._replace(behind=behind._replace(dead=True)), False
            yield "decode's rank 1 dies", fewer._replace(deaf=True), False

    # The prefill side.

    def sender_steps(self, world: HandoffWorld, number: int, one: Transfer) -> Iterator[tuple[str, HandoffWorld, bool]]:
        sent = one.sent
        if sent is None:
            if (one.kept or Message("begin") in one.wire) and world.slots and (not one.opened or world.repeats):
                yield f"begin {number}", open_send(world, number, one), False
            return
        happened = self.send_happened
        if sent.state in (SendState.COMPUTING, SendState.PREPARING) and not sent.blocks:
            if len(pick(world.theirs, one.size)) == one.size:
                yield f"compute {number}", self.compute(world, number, one, sent), False
        elif sent.state is SendState.COMPUTING:
            rest = announcement("handoff", sent, one.size - 1, sent.blocks[one.size - 1 :])
            held = self.rules.announce(world, number, rest)
            yield f"computed {number}", happened(held, number, SendEvent.COMPUTED), False
            yield f"finished {number}", happened(world, number, SendEvent.FINISHED), False
        elif sent.state is SendState.PREPARING:
            yield f"computed {number}", happened(world, number, SendEvent.COMPUTED), False
            yield f"finished {number}", happened(world, number, SendEvent.FINISHED), False
        elif sent.state is SendState.KEPT and Message("begin") in one.wire:
            whole = announcement("handoff", sent, 0, sent.blocks)
            claimed = self.rules.announce(world, number, whole)
            yield f"claimed {number}", happened(claimed, number, SendEvent.CLAIMED), False
        if sent.timed and (sent.state, SendEvent.LATE) in self.sending:
            yield f"late {number}", happened(world, number, SendEvent.LATE), True
        for message in one.wire:
            # A prompt that is not claimed has no peer, so that nobody's message is about it.
            if message.kind == "fetched" and sent.state in (SendState.COMPUTING, SendState.HELD):
                event = SendEvent.FETCHED if message.epoch == sent.epoch else SendEvent.STALE
                yield f"fetched {number}", happened(world, number, event), False
        yield f"prefill drops {number}", happened(world, number, SendEvent.DROPPED), False

    def compute(self, world: HandoffWorld, number: int, one: Transfer, sent: ModelSend) -> HandoffWorld:
        world = compute(world, number, one, sent)
        computed = world.transfers[number].sent
        assert computed is not None
        if computed.state is SendState.PREPARING:
            return world
        ready = announcement("chunk", computed, 0, computed.blocks[:-1])
        return self.rules.announce(world, number, ready) if one.size > 1 else world

    def send_happened(self, world: HandoffWorld, number: int, event: SendEvent) -> HandoffWorld:
        one = world.transfers[number]
        assert one.sent is not None
        state, actions = self.sending[one.sent.state, event]
        if state is SendState.RELEASED and event is not SendEvent.FINISHED and one.whole != one.sent.owner:
            raise Violation("prefill took a prompt for fetched that nobody has")
        sent = one.sent._replace(state=state, timed=one.sent.timed and state is one.sent.state)
        ended = state in SENDING_ENDS
        world = world.put(number, sent=None if ended else sent)._replace(agenda=(number, sent, actions))
        # Only an open pull could observe a state between two actions.
        while world.agenda is not None and not (one.received and one.received.pulls):
            world = self.act(world)
        return world if world.agenda is None or world.agenda[2] else world._replace(agenda=None)

    def act(self, world: HandoffWorld) -> HandoffWorld:
        """Run the next action on the agenda."""
        assert world.agenda is not None
        number, sent, actions = world.agenda
        if not actions:
            return world._replace(agenda=None)
        if actions[0] in self.sender_acts:
            world = self.sender_acts[actions[0]](world, number, sent)
        return world._replace(agenda=(number, sent, actions[1:]) if actions[1:] else None)

    # The decode side.

    def receiver_steps(
        self, world: HandoffWorld, number: int, one: Transfer
    ) -> Iterator[tuple[str, HandoffWorld, bool]]:
        received = one.received
        if received is None:
            if one.wanted and room(world) >= one.size:
                begun = world.put(number, wanted=False, received=ModelReceive(ReceiveState.RESERVED, one.size))
                yield f"ask for {number}", begun.send(number, Message("begin")), False
            return
        for index, pull in enumerate(received.pulls):
            yield from self.pull_steps(world, number, index, pull)
        if received.state is ReceiveState.DRAINING or received.state in RECEIVING_ENDS:
            return
        for message in one.wire:
            if message.kind not in TO_SENDER:
                yield f"{message.kind} {number}", self.heard(world, number, message), False
        yield f"decode drops {number}", self.settled(world, number, ReceiveEvent.CANCELLED), False
        if not received.error:
            yield f"stall {number}", self.fault(world, number), True

    def pull_steps(
        self, world: HandoffWorld, number: int, index: int, pull: ModelPull
    ) -> Iterator[tuple[str, HandoffWorld, bool]]:
        """Yield the steps of one pull: a rank's half fails or was cancelled, it succeeds, its report comes again, or
        the pull should end and is stuck."""
        received = received_of(world, number)
        over = received.error or received.state is ReceiveState.DRAINING or received.state in RECEIVING_ENDS
        ended = {rank for rank, _ in pull.reports}
        if over and (received.state, ReceiveEvent.STUCK) in self.receiving:
            yield f"pull of {number} is stuck", self.receive_happened(world, number, ReceiveEvent.STUCK), pull.cancelled
        for rank in range(1 if world.behind is None or world.deaf else 2):
            report = partial(self.reported, world, number, index)
            if rank in ended:
                if len(pull.reports) == len(ended):
                    yield f"rank {rank} repeats itself", report(dict(pull.reports)[rank], rank), False
                continue
            yield f"pull of {number} by {rank} fails", report(False, rank), False
            if over or (pull.lost and pull.owner == FREE):
                continue
            contents, epochs = seen_by(world, rank)
            if not pull.lost and epochs[received.slot] != received.epoch:
                continue  # it comes too late, and fails
            if not pull.lost and any(contents[block] != pull.owner for block in pull.theirs):
                raise Violation("blocks were read after they were given back, and nobody noticed")
            yield f"pull of {number} by {rank}", report(True, rank), False

    def reported(self, world: HandoffWorld, number: int, index: int, good: bool, rank: int) -> HandoffWorld:
        """Deliver a rank's report about a pull, which ends by the rule for all ranks."""
        received = received_of(world, number)
        pull = received.pulls[index]
        pull = pull._replace(reports=(*pull.reports, (rank, good)), cancelled=pull.cancelled or not good)
        end = good if world.behind is None else self.rules.joint(pull.reports)
        kept = () if end is not None else (pull,)
        pulls = (*received.pulls[:index], *kept, *received.pulls[index + 1 :])
        world = change_received(world, number, pulls=pulls)
        if end is None:
            return world
        writing = len({rank for rank, _ in pull.reports}) < (1 if world.behind is None else 2)
        if writing:
            world = world._replace(strays=(*world.strays, (number, pull.ours)))
        if received.error or received.state is ReceiveState.DRAINING or received.state in RECEIVING_ENDS:
            return self.settle(world, number)
        return self.settled(world, number, ReceiveEvent.ARRIVED) if end else self.fault(world, number)

    def heard(self, world: HandoffWorld, number: int, message: Message) -> HandoffWorld:
        """Deliver a message to the decode side, as KVReceiver.announced and DecodeSide.withdrawn do."""
        received = received_of(world, number)
        if received.error:
            return world
        if received.state is ReceiveState.RESERVED:
            received = received._replace(epoch=message.epoch, slot=message.slot, owner=message.owner)
        told, announced = (message.epoch, message.slot), len(received.blocks)
        if told != (received.epoch, received.slot) or message.first != announced or received.handoff:
            return self.fault(world.put(number, received=received), number)
        ours = pick(world.ours, len(message.blocks))
        assert len(ours) == len(message.blocks), "a credit without a block"
        received = received._replace(
            credits=received.credits - len(ours),
            blocks=received.blocks + ours,
            handoff=message.kind == "handoff",
            pulls=(*received.pulls, ModelPull(message.blocks, ours, message.owner, lost=message.lost)),
        )
        world = world.put(number, received=received)._replace(ours=set_owner(world.ours, ours, number + 1))
        return self.settled(world, number, ReceiveEvent.ANNOUNCED)

    def fault(self, world: HandoffWorld, number: int) -> HandoffWorld:
        return self.settled(change_received(world, number, error=True), number, ReceiveEvent.FAULT)

    def settled(self, world: HandoffWorld, number: int, event: ReceiveEvent) -> HandoffWorld:
        return self.settle(self.receive_happened(world, number, event), number)

    def settle(self, world: HandoffWorld, number: int) -> HandoffWorld:
        """Mirror KVReceiver.settle."""
        received = world.transfers[number].received
        if received is None or received.pulls or received.state in RECEIVING_ENDS:
            return world
        if received.state is ReceiveState.DRAINING:
            return self.receive_happened(world, number, ReceiveEvent.QUIET)
        if received.error:
            return self.receive_happened(world, number, ReceiveEvent.SPOILED)
        return self.receive_happened(world, number, ReceiveEvent.WHOLE) if received.handoff else world

    def receive_happened(self, world: HandoffWorld, number: int, event: ReceiveEvent) -> HandoffWorld:
        received = received_of(world, number)
        state, actions = self.receiving[received.state, event]
        world = world.put(number, received=received._replace(state=state))
        for action in actions:
            if action in self.receiver_acts:
                world = self.receiver_acts[action](world, number)
        return world
