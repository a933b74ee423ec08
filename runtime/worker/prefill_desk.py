# SPDX-License-Identifier: Apache-2.0
"""The prefill side of a worker: computes prompts for decode workers that have made room, and hands them over.

A prompt is computed only when both the proxy's Submit and the decode worker's Begin are here, whichever came first.
Blocks that were handed over stay ours, under a lease, until the decode worker says Fetched.
"""

import time
from collections.abc import Sequence as Some
from dataclasses import dataclass, field

from pontil.runtime.engine.engine import Output
from pontil.runtime.engine.sequence import Finish, Sequence
from pontil.runtime.transfer.connector import Connector
from pontil.runtime.transfer.giver import Gift, Giver, Prefilled
from pontil.runtime.transfer.states import Giving
from pontil.runtime.wire.messages import (
    SCHEMA,
    Abandon,
    Begin,
    Fetched,
    Greet,
    Greeting,
    Message,
    Renew,
    Withdrawn,
)
from pontil.runtime.wire.sockets import PeerServer
from pontil.runtime.worker.assembly import Machine
from pontil.runtime.worker.live import Live

# How long one half of a request waits for the other.
PAIRING_TIMEOUT = 60.0


@dataclass(slots=True)
class Half:
    """A transfer of which one side has spoken."""

    deadline: float
    live: Live | None = None
    begin: Begin | None = None


@dataclass(slots=True)
class Job:
    """A prompt being computed for a decode worker. `firsts` are the outputs of those `choices` that have their first
    token."""

    live: Live
    gift: Gift
    begun: float
    choices: Some[int]
    firsts: list[Output] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return len(self.firsts) == len(self.choices)


@dataclass(slots=True)
class PrefillDesk:
    """Messages in by `take`, time by `tick`, the engine's progress by `announce` and `ended`.

    Requests that this side gives up on are put into `failed` with the reason; the worker tells the proxy. Those it is
    done with are put into `over`.
    """

    machine: Machine
    socket: PeerServer
    connector: Connector
    giver: Giver
    kv_fingerprint: str
    halves: dict[str, Half] = field(default_factory=dict)
    jobs: dict[str, Job] = field(default_factory=dict)
    held: dict[str, Live] = field(default_factory=dict)
    failed: list[tuple[Live, str]] = field(default_factory=list)
    over: list[Live] = field(default_factory=list)
    expired: int = 0

    def submitted(self, live: Live, now: float) -> None:
        half = self.half(str(live.submit.transfer_id), now)
        half.live = live
        self.pair(str(live.submit.transfer_id), half)

    def take(self, message: Message, now: float) -> None:
        if isinstance(message, Greet):
            self.socket.send(self.answer(message))
        elif isinstance(message, Begin):
            half = self.half(message.transfer_id, now)
            half.begin = message
            self.pair(message.transfer_id, half)
        elif isinstance(message, Fetched):
            self.release(message.transfer_id, Giving.RELEASED, message.epoch)
        elif isinstance(message, Renew):
            self.giver.renew(message.transfer_id, message.epoch, now)
        elif isinstance(message, Abandon):
            self.drop(message.transfer_id)

    def answer(self, greet: Greet) -> Greeting:
        """Blocks fit when protocol, model and layout are the same (C8)."""
        theirs = (greet.schema, greet.model_fingerprint, greet.kv_fingerprint)
        if theirs != (SCHEMA, self.machine.fingerprint, self.kv_fingerprint):
            reason = f"{greet.name} runs another model, KV layout or protocol version"
            return Greeting(self.giver.incarnation, greet.sender, reason=reason)
        return Greeting(self.giver.incarnation, greet.sender, pool=self.connector.register())

    def half(self, transfer_id: str, now: float) -> Half:
        return self.halves.setdefault(transfer_id, Half(now + PAIRING_TIMEOUT))

    def pair(self, transfer_id: str, half: Half) -> None:
        """Start computing if both sides have spoken."""
        live, begin = half.live, half.begin
        if live is None or begin is None:
            return
        del self.halves[transfer_id]
        if begin.sender != live.submit.peer:
            self.give_up(live, "the decode worker that asked for the prompt is not the one that was planned")
            return
        if not 0 <= begin.have <= len(live.sequence.prompt) // self.machine.layout.block_size:
            self.withdraw(begin.sender, transfer_id, False, "the prompt does not have so many blocks")
            self.give_up(live, "the decode worker claims blocks that the prompt does not have")
            return
        gift = self.giver.begin(transfer_id, begin.sender, begin.have)
        if gift is None:
            self.withdraw(begin.sender, transfer_id, False, "too many transfers are open")
            self.give_up(live, "the prefill worker has too many transfers open")
            return
        self.jobs[live.key] = Job(live, gift, time.monotonic(), live.sequence.choices)
        self.machine.engine.add(live.sequence)

    def announce(self) -> None:
        """After a step: name the blocks that it completed."""
        for job in list(self.jobs.values()):
            sequence = job.live.sequence
            ready = sequence.blocks[: sequence.computed // self.machine.layout.block_size]
            chunk = self.giver.announce(job.gift, ready)
            if chunk is not None and not self.socket.send(chunk):
                self.lose(job)

    def ended(self, output: Output) -> None:
        """A choice has its first token. With the last one the prompt is handed over, if any of them goes on."""
        job = self.jobs[output.sequence.id]
        job.firsts.append(output)
        if not job.complete:
            return
        del self.jobs[job.live.key]
        going_on = [one.sequence for one in job.firsts if one.finish is Finish.HANDED_OVER]
        if going_on:
            self.hand_over(job, going_on)
        else:
            self.giver.release(job.gift.transfer_id, Giving.RELEASED)
            self.withdraw(job.gift.peer, job.gift.transfer_id, True, "finished")
            self.over.append(job.live)

    def hand_over(self, job: Job, going_on: list[Sequence]) -> None:
        """Everything else is the decode worker's. The choices share their blocks, so one of them keeps them for all."""
        sequence, *others = going_on
        for other in others:
            self.machine.scheduler.memory.give_back(other)
        filled = sequence.computed % self.machine.layout.block_size
        if filled:
            # A block is digested and sent whole: what an earlier owner left behind the prompt must not travel.
            self.machine.storage.clear_tail(sequence.blocks[-1], filled)
        now = time.monotonic()
        done = prefilled(job, going_on, now, self.machine.scheduler.speculative_tokens)
        handoff = self.giver.hold(job.gift, sequence.blocks, done, now)
        self.held[handoff.transfer_id] = job.live
        if not self.socket.send(handoff):
            self.give_up(job.live, "the decode worker could not be reached for the handoff")
            self.release(job.gift.transfer_id, Giving.ABANDONED)

    def cancel(self, live: Live) -> None:
        """The proxy does not want it any more, in whatever state it is."""
        transfer_id = str(live.submit.transfer_id)
        self.halves.pop(transfer_id, None)
        job = self.jobs.pop(live.key, None)
        if job is not None:
            self.stop(job, "cancelled")
        else:
            self.release(transfer_id, Giving.ABANDONED)

    def drop(self, transfer_id: str) -> None:
        """The decode worker does not want it any more; it tells the proxy what there is to tell."""
        half = self.halves.pop(transfer_id, None)
        if half is not None and half.live is not None:
            self.give_up(half.live, "the decode worker abandoned the transfer")
        job = next((job for job in self.jobs.values() if job.gift.transfer_id == transfer_id), None)
        if job is not None:
            del self.jobs[job.live.key]
            self.stop(job, "abandoned")
            self.give_up(job.live, "the decode worker abandoned the transfer")
        self.release(transfer_id, Giving.ABANDONED)

    def lose(self, job: Job) -> None:
        del self.jobs[job.live.key]
        self.stop(job, "unreachable")
        self.give_up(job.live, "the decode worker could not be reached")

    def stop(self, job: Job, reason: str) -> None:
        """End a prompt that is being computed: the epoch is bumped before the engine frees the blocks."""
        self.giver.release(job.gift.transfer_id, Giving.ABANDONED)
        self.machine.engine.end(job.live.key, Finish.ABORTED)
        self.withdraw(job.gift.peer, job.gift.transfer_id, False, reason)

    def release(self, transfer_id: str, state: Giving, epoch: int | None = None) -> None:
        """End a transfer whose blocks are held, and return them (idempotent)."""
        gift = self.giver.release(transfer_id, state, epoch)
        if gift is not None:
            self.machine.pool.release(gift.blocks)
            live = self.held.pop(transfer_id, None)
            if live is not None:
                self.over.append(live)

    def tick(self, now: float) -> None:
        """Deadlines: leases, and halves that wait for their other half."""
        for gift in self.giver.expired(now):
            self.release(gift.transfer_id, Giving.EXPIRED)
            self.withdraw(gift.peer, gift.transfer_id, False, "the lease expired")
            self.expired += 1
        late = [transfer_id for transfer_id, half in self.halves.items() if half.deadline <= now]
        for transfer_id in late:
            half = self.halves.pop(transfer_id)
            if half.live is not None:
                self.give_up(half.live, f"no decode worker made room within {PAIRING_TIMEOUT:.0f} s")
            if half.begin is not None:
                self.withdraw(half.begin.sender, transfer_id, False, "the proxy never submitted the request")

    def withdraw(self, peer: str, transfer_id: str, finished: bool, reason: str) -> None:
        self.socket.send(Withdrawn(self.giver.incarnation, peer, transfer_id, finished, reason))

    def give_up(self, live: Live, reason: str) -> None:
        self.failed.append((live, reason))


def prefilled(job: Job, going_on: list[Sequence], now: float, speculative_tokens: int) -> Prefilled:
    """What there is to say of a prompt that is computed."""
    sequence, n = going_on[0], going_on[0].params.n
    drafts = {first.sequence.choice: list(first.sequence.draft(speculative_tokens)) for first in job.firsts}
    tokens = {first.sequence.choice: first.sequence.output[0] for first in job.firsts}
    known = {first.sequence.choice: first.logprobs[0].to_wire() for first in job.firsts if first.logprobs}
    return Prefilled(
        sequence.computed,
        [tokens[choice] if choice in tokens else job.live.submit.delivered[choice][0] for choice in range(n)],
        len(sequence.prompt),
        job.live.cached,
        now - job.begun,
        [one.choice for one in going_on],
        [known.get(choice, []) for choice in range(n)] if known else None,
        [drafts.get(choice, []) for choice in range(n)] if any(drafts.values()) else None,
    )
