# SPDX-License-Identifier: Apache-2.0
"""Two partitions of a request as a system of states, for search.py: a producer, and a consumer on one worker or split
over two. Partitions and buffers are the real ones, made anew for each step; the workers around them are modelled.

Messages arrive in any order, late, twice (an acknowledgement was lost) or never; a process dies; the client leaves.
After a death or a loss the conductor replays the consumer from the kept items: every worker of it begins anew, and
messages of the life before are dropped.
"""

from collections.abc import Iterator

from partition_state import PARTITION, PartitionRun, PartitionState, PartitionTable
from partition_world import (
    FRAME,
    LAST,
    ConsumerState,
    GraphMessage,
    GraphWorld,
    ProducerState,
    RecordingRun,
    RunState,
)
from partition_world import frozen as frozen_buffer
from partition_world import thawed as thawed_buffer
from search import SearchStep, Violation

from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer

Step = SearchStep[GraphWorld]
MOST_HELD = 2


class TwoPartitions:
    """The steps of a graph whose producer emits items with the given `tags`. `hosts`: walks of each consumer worker."""

    def __init__(
        self,
        tags: tuple[str, ...],
        hosts: tuple[frozenset[str], ...],
        table: PartitionTable = PARTITION,
        kind: type[StreamBuffer] = StreamBuffer,
    ) -> None:
        self.tags, self.hosts, self.table, self.kind = tags, hosts, table, kind

    def start(self, crashes: int, losses: int, repeats: int, leaves: int) -> GraphWorld:
        world = GraphWorld(ProducerState(), tuple(ConsumerState() for _ in self.hosts))
        world = world._replace(crashes=crashes, losses=losses, repeats=repeats, leaves=leaves)
        return world.send(GraphMessage(0, "inputs", 0))

    def at_rest(self, world: GraphWorld) -> bool:
        """Return whether all has ended, and the client has everything unless it left."""
        runs = [world.producer.run, *(one.run for one in world.consumers if not one.dead)]
        if not all(run.is_over for run in runs) or world.wire:
            return False
        for run in runs:
            if run.state is PartitionState.DONE and (run.told, run.freed) != (1, 1):
                return False
        return world.left or (world.finals == 1 and world.delivered == len(self.tags))

    def steps(self, world: GraphWorld) -> Iterator[Step]:
        yield from self.produce(world)
        for message in sorted(world.wire, key=lambda one: (one.to, one.kind, one.life, one.at)):
            yield from self.network(world, message)
        for number, one in enumerate(world.consumers):
            if not one.dead:
                yield from self.consume(world, number, one)
        yield from self.disturb(world)
        if world.lost and not world.left and not world.is_complete:
            yield SearchStep("replay", self.replay(world), True)
        if world.is_complete and not world.left:
            ended = [self.ended(one.run) for one in world.consumers]
            consumers = tuple(one._replace(run=run) for one, run in zip(world.consumers, ended, strict=True))
            yield SearchStep("the conductor ends the rest", world._replace(consumers=consumers), True)

    # The producer

    def produce(self, world: GraphWorld) -> Iterator[Step]:
        producer = world.producer
        acts = RecordingRun(producer.run, self.table)
        name = None
        if producer.run.state is PartitionState.IDLE and not world.left:
            acts.run.begin("write")
            name = "the producer begins"
        elif producer.run.ingested:
            acts.run.passed()
            name = "the producer's pass ends"
            if producer.run.state is PartitionState.RUNNING:
                producer = producer._replace(emitted=producer.emitted + 1)
                world = world.send(*self.emitted(producer.emitted - 1, world.life))
        elif producer.run.state is PartitionState.CLEAN:
            if producer.emitted < len(self.tags):
                acts.run.take("write", None)
            else:
                acts.run.end()
            name = "the producer goes on"
        if name is not None:
            yield SearchStep(name, self.producer_acted(world, producer, acts), True)

    def producer_acted(self, world: GraphWorld, producer: ProducerState, acts: RecordingRun) -> GraphWorld:
        if acts.told > producer.run.told:
            world = world.send(*self.ends(producer.emitted, world.life))
        return world._replace(producer=producer._replace(run=acts.frozen()))

    def host(self, walk: str) -> int:
        return next(number for number, walks in enumerate(self.hosts) if walk in walks)

    def emitted(self, index: int, life: int) -> Iterator[GraphMessage]:
        """Yield the messages of one pass of the producer."""
        walk = self.tags[index]
        yield GraphMessage(self.host(walk), "item", life, index, walk)
        if index and self.tags[index - 1] != walk:
            yield GraphMessage(self.host(self.tags[index - 1]), "marker", life, index, walk)

    def ends(self, index: int, life: int) -> Iterator[GraphMessage]:
        for number in range(len(self.hosts)):
            yield GraphMessage(number, "end", life, index)

    # The network, deaths, and the client

    def network(self, world: GraphWorld, message: GraphMessage) -> Iterator[Step]:
        without = world._replace(wire=world.wire - {message})
        arrived = self.deliver(without, message)
        yield SearchStep(f"{message.kind} {message.at} arrives at {message.to}", arrived, True)
        if world.repeats and message.kind in ("item", "handoff"):
            again = arrived.send(message)._replace(repeats=world.repeats - 1)
            yield SearchStep(f"{message.kind} {message.at} arrives, and will again", again, False)
        if world.losses:
            lost = without._replace(losses=world.losses - 1, lost=True)
            yield SearchStep(f"{message.kind} {message.at} is lost", lost, False)

    def disturb(self, world: GraphWorld) -> Iterator[Step]:
        if world.leaves and not world.is_complete:
            runs = [self.ended(one.run) for one in world.consumers]
            consumers = tuple(one._replace(run=run) for one, run in zip(world.consumers, runs, strict=True))
            producer = world.producer._replace(run=self.ended(world.producer.run))
            gone = world._replace(producer=producer, consumers=consumers, leaves=0, left=True)
            yield SearchStep("the client leaves", gone, False)
        if not world.crashes:
            return
        world = world._replace(crashes=world.crashes - 1)
        if world.left:
            finished = ProducerState(RunState(PartitionState.DONE, told=1, freed=1))
            yield SearchStep("the producer dies", world._replace(producer=finished), False)
        else:
            yield SearchStep("the producer dies, another begins", world._replace(producer=ProducerState()), False)
        for number in range(len(world.consumers)):
            dead = world.put(number, ConsumerState(dead=True))._replace(lost=True)
            yield SearchStep(f"consumer {number} dies", dead, False)

    def replay(self, world: GraphWorld) -> GraphWorld:
        life = world.life + 1
        fresh = tuple(ConsumerState() for _ in self.hosts)
        world = world._replace(consumers=fresh, life=life, lost=False, wire=frozenset())
        world = world.send(GraphMessage(0, "inputs", life))
        for index in range(world.producer.emitted):
            world = world.send(*self.emitted(index, life))
        if world.producer.run.state is PartitionState.DONE:
            world = world.send(*self.ends(world.producer.emitted, life))
        return world

    def ended(self, run: RunState) -> RunState:
        acts = RecordingRun(run, self.table)
        acts.run.end()
        return self.checked(run, acts)

    def checked(self, before: RunState, acts: RecordingRun) -> RunState:
        after = acts.frozen()
        if after.freed > before.freed and after.ingested:
            raise Violation("freed while a pass runs")
        if after.told > 1:
            raise Violation("consumers are told twice")
        return after

    # The consumer

    def deliver(self, world: GraphWorld, message: GraphMessage) -> GraphWorld:
        one = world.consumers[message.to]
        if one.dead or message.life != world.life:
            return world
        acts = RecordingRun(one.run, self.table)
        buffer = thawed_buffer(one.buffer, self.hosts[message.to], self.kind)
        if message.kind == "item":
            buffer.put(message.at, message.walk, message.at)
        elif message.kind == "marker":
            buffer.mark(message.at, message.walk)
        elif message.kind == "end":
            buffer.end(message.at)
        elif one.run.state is PartitionState.IDLE:
            for walk, payloads in message.parked:
                for payload in payloads:
                    acts.run.give(walk, payload)
            buffer.hear(message.position)
            acts.run.begin()
            one = one._replace(kv=message.kv)
        return world.put(message.to, one._replace(run=acts.frozen(), buffer=frozen_buffer(buffer)))

    def consume(self, world: GraphWorld, number: int, one: ConsumerState) -> Iterator[Step]:
        acts = RecordingRun(one.run, self.table)
        buffer = thawed_buffer(one.buffer, self.hosts[number], self.kind)
        may = self.may_take(acts.run, buffer.next_walk) and len(one.held) < MOST_HELD
        if may and (chunk := buffer.pop()) is not None:
            acts.run.take(chunk.walk, chunk)
            held = one.held + ((chunk,) if acts.ingested else ())
            changed = one._replace(run=acts.frozen(), buffer=frozen_buffer(buffer), held=held)
            yield SearchStep(f"consumer {number} takes {chunk.items} in {chunk.walk}", world.put(number, changed), True)
        if one.held:
            yield SearchStep(f"consumer {number} ran", self.ran(world, number, one), True)
        if one.run.state is PartitionState.CLEAN and one.buffer.taken == one.buffer.ran:
            yield from self.leave(world, number, one)
        for other, there in enumerate(world.consumers):
            if other != number and not there.dead:
                heard = thawed_buffer(there.buffer, self.hosts[other], self.kind)
                heard.hear(one.buffer.ran)
                news = world.put(other, there._replace(buffer=frozen_buffer(heard)))
                yield SearchStep(f"consumer {other} hears of {number}", news, False)

    def may_take(self, run: PartitionRun, walk: str | None) -> bool:
        """Return whether the next chunk is popped: one of another walk stays where it is until all has run (E8)."""
        return run.may_enter(walk)

    def ran(self, world: GraphWorld, number: int, one: ConsumerState) -> GraphWorld:
        """Let the oldest pass end: its items are in the KV, its output goes out, its report is made."""
        chunk, acts = one.held[0], RecordingRun(one.run, self.table)
        buffer = thawed_buffer(one.buffer, self.hosts[number], self.kind)
        if one.run.state is not PartitionState.ENDING:
            self.check_pass(one, chunk)
            one = one._replace(kv=one.kv + tuple(int(str(item)) for item in chunk.items))
            world = world._replace(delivered=max(world.delivered, len(one.kv)), finals=world.finals + chunk.final)
            buffer.record(chunk)
            if chunk.walk == "last":
                acts.run.give(LAST, FRAME)
        if world.finals > 1:
            raise Violation("two final chunks")
        acts.run.passed()
        if chunk.final:
            acts.run.end()
        run = self.checked(one.run, acts)
        return world.put(number, one._replace(run=run, buffer=frozen_buffer(buffer), held=one.held[1:]))

    def check_pass(self, one: ConsumerState, chunk: Chunk) -> None:
        if chunk.walk != one.run.walk:
            raise Violation(f"a chunk of {chunk.walk} runs under {one.run.walk}")
        if chunk.items not in ((), (len(one.kv),)):
            raise Violation(f"item {chunk.items} runs after {one.kv}")
        frames = (FRAME,) * ("last" in self.tags) if chunk.walk == LAST else ()
        if one.run.inputs != frames:
            raise Violation(f"in {chunk.walk} the inputs are {one.run.inputs}")

    def leave(self, world: GraphWorld, number: int, one: ConsumerState) -> Iterator[Step]:
        buffer = thawed_buffer(one.buffer, self.hosts[number], self.kind)
        if buffer.leaves is None:
            return
        acts = RecordingRun(one.run, self.table)
        acts.run.leave()
        to = self.host(buffer.leaves)
        handoff = GraphMessage(
            to, "handoff", world.life, position=buffer.ran, kv=one.kv, parked=acts.frozen().parked
        )  # fmt: skip
        world = world.put(number, one._replace(run=acts.frozen()))
        yield SearchStep(f"consumer {number} hands over", world.send(handoff) if acts.handed_over else world, True)
