# SPDX-License-Identifier: Apache-2.0
"""A worker process that embeds texts, or scores pairs of them: the deadlines and steps around an Embedder."""

import heapq
import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT, is_out_of_memory
from pontil.runtime.models.embedding_model import SequenceText
from pontil.runtime.reporting import Reporter
from pontil.runtime.timeline.work_times import WorkTimes
from pontil.runtime.wire.messages import SCHEMA, Cancel, Embed, Embedding, Hello, Message
from pontil.runtime.worker.embed.assembly import Embedder
from pontil.runtime.worker.links.proxy_link import BEAT, Failure, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.links.worker_sockets import WorkerSockets
from pontil.runtime.worker.process.idle_work import IdleWork
from pontil.runtime.worker.process.loop import WorkerLoop
from pontil.runtime.worker.process.workload import Outlook, Workload


@dataclass(frozen=True, slots=True)
class Waiting:
    """A text, and when it arrived, in seconds of the worker's clock."""

    message: Embed
    arrived: float

    @property
    def key(self) -> tuple[str, int]:
        return self.message.request_id, self.message.attempt

    def is_late(self, now: float) -> bool:
        deadline = self.message.deadline
        return deadline is not None and now >= self.arrived + deadline


class EmbeddingQueue:
    """Texts in the order of priority, then of arrival. A batch has at most `most_tokens`, or one longer text.

    `waiting` has exactly the texts that will be computed; `order` may also hold some that were removed."""

    def __init__(self, most_tokens: int) -> None:
        self.most_tokens = most_tokens
        self.waiting: dict[tuple[str, int], Waiting] = {}
        self.order: list[tuple[int, int, tuple[str, int]]] = []
        self.numbers = count()

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Waiting]:
        return iter(self.waiting.values())

    def push(self, one: Waiting) -> None:
        """Add a text; one that is there already stays as it is."""
        if one.key not in self.waiting:
            self.waiting[one.key] = one
            heapq.heappush(self.order, (one.message.priority, next(self.numbers), one.key))

    def next_batch(self) -> list[Waiting]:
        """Remove and return the texts of the next step."""
        batch: list[Waiting] = []
        tokens = 0
        while self.order:
            one = self.waiting.get(self.order[0][2])
            if one is not None:
                tokens += len(one.message.prompt)
                if batch and tokens > self.most_tokens:
                    break
                batch.append(self.waiting.pop(one.key))
            heapq.heappop(self.order)
        return batch

    def cancel(self, request_id: str, attempt: int) -> None:
        """Remove a text; an unknown one is no error."""
        self.waiting.pop((request_id, attempt), None)

    def take_late(self, now: float) -> list[Waiting]:
        """Remove and return the texts whose deadline has passed."""
        return [self.waiting.pop(one.key) for one in list(self) if one.is_late(now)]

    def take_of(self, proxy: str) -> list[Waiting]:
        """Remove and return the texts that this proxy sent."""
        return [self.waiting.pop(one.key) for one in list(self) if one.message.sender == proxy]

    def clear(self) -> list[Waiting]:
        """Remove and return all texts."""
        gone = list(self)
        self.waiting.clear()
        self.order.clear()
        return gone


logger = logging.getLogger("pontil.worker")

# Texts that the proxy may leave with one worker at once: they cost it little memory.
SEATS = 512
LATE = Failure("no worker had computed the text before its deadline", 503, late=True)
# The roles that such workers can have, which they keep.
ROLES = ("embed", "rerank")


class EmbeddingWorker(Workload):
    """The texts of one process that embeds. A step computes some of the waiting ones and sends each its vector."""

    def __init__(self, sockets: WorkerSockets, embedder: Embedder) -> None:
        self.embedder, self.queue = embedder, EmbeddingQueue(sockets.config.step_size.tokens)
        embedder.guard.begin(sockets.closing, sockets.failures)
        link = sockets.connect_proxies(introduction(sockets, embedder))
        super().__init__(sockets, link, IdleWork(), {"max_model_len": embedder.max_model_len})

    def take(self, message: Message, now: float) -> bool:
        if isinstance(message, Embed):
            self.submit(message, now)
        elif isinstance(message, Cancel):
            self.queue.cancel(message.request_id, message.attempt)
        else:
            return False
        return True

    def submit(self, message: Embed, now: float) -> None:
        if reason := self.objection(message):
            self.link.refuse(message, Failure(reason, 400))
        else:
            self.queue.push(Waiting(message, now))

    def poll(self, now: float) -> None:
        for one in self.queue.take_late(now):
            self.link.refuse(one.message, LATE)

    def step(self, now: float) -> None:
        """Compute the texts of one step and send their vectors."""
        made = self.vectors_of(self.queue.next_batch())
        ended = time.monotonic()
        for one, vector in made:
            message, count = one.message, len(one.message.prompt)
            if link := self.link.of(message.sender):
                link.told.tell(0, count)
            address = self.sockets.incarnation, message.sender, message.request_id, message.attempt
            self.link.send(Embedding(*address, vector, count, count, now - one.arrived))
        # No vector waits until another one's times are told.
        for one, _ in made:
            self.tell_times(one, now, ended)

    def tell_times(self, one: Waiting, began: float, ended: float) -> None:
        """Tell the proxy of the step that computed a text."""
        times, message = WorkTimes(scheduled=began), one.message
        times.chunks.add(began, ended, len(message.prompt))
        self.link.times.ended(message.sender, message.request_id, message.attempt, one.arrived, times)

    def vectors_of(self, batch: list[Waiting]) -> list[tuple[Waiting, bytes]]:
        """Return the vectors of texts. Where memory does not suffice for all of them, the longest are refused."""
        while batch:
            try:
                made = self.embedder.vectors([text_of(one.message) for one in batch])
                return list(zip(batch, made, strict=True))
            except (MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                logger.warning("memory ran out in a step, whose longest text is refused: %s", error)
            longest = max(batch, key=lambda one: len(one.message.prompt))
            batch = [one for one in batch if one is not longest]
            self.link.refuse(longest.message, Failure(MEMORY_RAN_OUT, 503))
        return []

    def objection(self, message: Embed) -> str | None:
        """Return why a text cannot be computed here, even if the proxy accepted it; else None."""
        prompt, embedder = message.prompt, self.embedder
        if not prompt or min(prompt) < 0 or max(prompt) >= embedder.vocab_size:
            return "the input is empty or has token ids outside the vocabulary"
        if len(prompt) > embedder.max_model_len:
            return f"{len(prompt)} tokens exceed the context of {embedder.max_model_len}"
        if message.types and (
            len(message.types) != len(prompt) or not set(message.types) <= set(range(embedder.types))
        ):
            return f"the types of tokens are {len(message.types)} for {len(prompt)}, or not below {embedder.types}"
        size = embedder.answers.size
        if message.dimensions is not None and not 1 <= message.dimensions <= size:
            return f"dimensions is {message.dimensions}, and the model has {size}"
        return None

    def drop(self, failure: Failure | None, proxy: str | None, now: float) -> int:
        dropped = self.queue.clear() if proxy is None else self.queue.take_of(proxy)
        if failure is not None:
            for one in dropped:
                self.link.refuse(one.message, failure)
        return len(dropped)

    def outlook(self) -> Outlook:
        has_work = bool(self.queue)
        return Outlook(has_work, not has_work, 0.0 if has_work else BEAT)

    def load(self, link: ProxyLink) -> HeartbeatLoad:
        """Return the load for the proxy of this link, with what other proxies have here if there may be some."""
        waiting = len(self.queue)
        others = None if self.link.only is not None else self.others(link)
        return HeartbeatLoad(0, waiting, max(0, SEATS - waiting), 0, link.told.counters(), None, others)

    def others(self, link: ProxyLink) -> dict[str, int]:
        theirs = [one.message for one in self.queue if one.message.sender != link.proxy]
        return {
            "proxies": self.link.proxies - (link.proxy is not None),
            "in_flight": len(theirs),
            "taken": len(theirs),
            "uncomputed": sum(len(message.prompt) for message in theirs),
        }


def text_of(message: Embed) -> SequenceText:
    return SequenceText(message.prompt, message.types, message.dimensions)


def introduction(sockets: WorkerSockets, embedder: Embedder) -> Hello:
    """Return what the worker registers with. It has no KV cache: a block stands for one text, block 0 for none."""
    config = sockets.config
    return Hello(
        sockets.incarnation, SCHEMA, config.name, config.role, os.getpid(), config.device, config.served_model_name,
        embedder.identity, "", "", embedder.max_model_len, SEATS + 1, SEATS, embedder.max_model_len,
        config.step_size.tokens, kernels=embedder.kernels, dtype=embedder.dtype,
        embedding_size=embedder.answers.size, revision=config.revision, version=config.version,
    )  # fmt: skip


def make_embedding_worker(
    config: WorkerConfig, embedder: Embedder, report: Reporter, pipe: CommandPipe | None = None
) -> WorkerLoop:
    sockets = WorkerSockets(config)
    with sockets.opening():
        return WorkerLoop(EmbeddingWorker(sockets, embedder), report, pipe)
