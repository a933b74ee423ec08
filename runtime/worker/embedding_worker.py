# SPDX-License-Identifier: Apache-2.0
"""A worker process that embeds texts: sockets and deadlines around an Embedder."""

import logging
import os
import secrets
import time
from types import FrameType

from pontil.runtime.command_pipe import CommandPipe
from pontil.runtime.config import WorkerConfig
from pontil.runtime.reporting import Reporter
from pontil.runtime.threads import ThreadFailures
from pontil.runtime.wire.keys import Keys
from pontil.runtime.wire.messages import SCHEMA, Cancel, Embed, Embedding, Failed, Hello, Message
from pontil.runtime.wire.sockets import Poller, WorkerSocket, open_context
from pontil.runtime.worker.embedding_assembly import Embedder
from pontil.runtime.worker.embedding_queue import EmbeddingQueue, Waiting
from pontil.runtime.worker.proxy_link import BEAT, HeartbeatLoad, ProxyLink
from pontil.runtime.worker.proxy_reachability import ProxyReachability
from pontil.runtime.worker.request_table import Failure
from pontil.runtime.worker.role_change import AssignedRole
from pontil.runtime.worker.step_reporter import StepReporter
from pontil.runtime.worker.supervisor_commands import SupervisorCommands

logger = logging.getLogger("pontil.worker")

CONGESTION_PAUSE = 0.005
# Texts that the proxy may leave with one worker at once: they cost it little memory.
SEATS = 512
LATE = Failure("no worker had computed the text before its deadline", 503, late=True)
# The only role that such a worker can have.
ROLE = "embed"


class EmbeddingWorker:
    """One process that embeds texts. A step computes some of the waiting ones and sends each its vector."""

    def __init__(
        self, config: WorkerConfig, embedder: Embedder, report: Reporter, pipe: CommandPipe | None = None
    ) -> None:
        self.config, self.embedder, self.report = config, embedder, report
        self.incarnation = secrets.token_hex(8)
        self.stopping = False
        self.now = time.monotonic()
        self.stale = 0
        self.queue = EmbeddingQueue(config.max_num_batched_tokens)
        self.step_reporter = StepReporter(report)
        self.computed = self.computed_before = 0
        self.failures = ThreadFailures()
        self.context = open_context(None if config.keys is None else Keys.of(config.keys), self.failures)
        self.poller = Poller()
        self.control = WorkerSocket(self.context, self.incarnation, config.control)
        self.poller.register(self.control)
        self.link = ProxyLink(self.control, make_hello(self.incarnation, config, embedder))
        self.reachability = ProxyReachability(self.control.connection, config.control)
        self.assigned_role = AssignedRole(self.link, report)
        self.commands = None if pipe is None else SupervisorCommands(pipe, self.poller, self.assigned_role)

    def stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        self.stopping = True
        self.poller.wake()

    def run(self) -> None:
        """Serve until stopped. The worker reports that it is ready once the proxy has welcomed it."""
        self.report.progress("registering with the proxy")
        if self.commands is not None:
            self.commands.obey(self.now)
        self.tick(self.now)
        while self.link.proxy is None and not self.stopping:
            self.turn()
        self.report.ready(device=self.config.device, max_model_len=self.embedder.max_model_len)
        while not self.stopping:
            self.turn()
        self.leave()

    def leave(self) -> None:
        """On shutdown, return waiting texts so the proxy can redispatch at once."""
        self.link.goodbye(drained=self.assigned_role.is_drained)
        self.give_back(Failure("the worker stops", 503, moved=True))
        self.link.flush()

    def turn(self) -> None:
        """Run one iteration: handle messages, check deadlines, compute some texts."""
        self.poller.wait(CONGESTION_PAUSE if self.link.congested else 0.0 if self.queue else BEAT)
        now = self.now = time.monotonic()
        if self.commands is not None:
            self.commands.obey(now)
        for message in self.control.receive_all():
            self.take(message, now)
        self.tick(now)
        if self.may_step:
            self.step(now)
        if self.assigned_role.is_overdue(self.now):
            self.give_back(Failure("the worker drains", 503, moved=True))
        self.assigned_role.tell(idle=not self.queue)
        self.step_reporter.rest(self.may_step)

    @property
    def may_step(self) -> bool:
        return bool(self.queue) and not self.link.congested

    def step(self, now: float) -> None:
        """Compute the texts of one step and send their vectors."""
        self.step_reporter.begin()
        batch = self.queue.next_batch()
        vectors = self.embedder.vectors([(one.message.prompt, one.message.dimensions) for one in batch])
        for one, vector in zip(batch, vectors, strict=True):
            message, count = one.message, len(one.message.prompt)
            self.computed += count
            address = self.incarnation, message.sender, message.request_id, message.attempt
            self.link.send(Embedding(*address, vector, count, count, now - one.arrived))
        self.now = time.monotonic()
        self.step_reporter.end(bool(self.queue))

    def take(self, message: Message, now: float) -> None:
        if getattr(message, "receiver", None) != self.incarnation:
            self.stale += 1
        elif isinstance(message, Embed):
            self.submit(message, now)
        elif isinstance(message, Cancel):
            self.queue.cancel(message.request_id, message.attempt)
        else:
            known = self.link.proxy
            if self.link.heard(message, now):
                self.orphan()
            if self.link.proxy != known:
                self.computed_before = self.computed
                logger.info("registered with the proxy")

    def submit(self, message: Embed, now: float) -> None:
        if reason := self.objection(message):
            self.refuse(message, Failure(reason, 400))
        else:
            self.queue.push(Waiting(message, now))

    def objection(self, message: Embed) -> str | None:
        """Return why a text cannot be computed here, even if the proxy accepted it; else None."""
        prompt, embedder = message.prompt, self.embedder
        if not prompt or min(prompt) < 0 or max(prompt) >= embedder.vocab_size:
            return "the input is empty or has token ids outside the vocabulary"
        if len(prompt) > embedder.max_model_len:
            return f"{len(prompt)} tokens exceed the context of {embedder.max_model_len}"
        size = embedder.model.hidden_size
        if message.dimensions is not None and not 1 <= message.dimensions <= size:
            return f"dimensions is {message.dimensions}, and the model has {size}"
        return None

    def refuse(self, message: Embed, failure: Failure) -> None:
        """Report a failure to the proxy."""
        level = logging.INFO if failure.moved else logging.WARNING
        logger.log(
            level, "request %s: %s", message.request_id, failure.reason, extra={"request": message.request_id}
        )  # fmt: skip
        address = self.incarnation, message.sender, message.request_id, message.attempt
        self.link.send(Failed(*address, failure.reason, failure.status, failure.moved, failure.late))

    def give_back(self, failure: Failure) -> None:
        """End all waiting requests with this failure; another worker computes those that are `moved`."""
        for one in self.queue.clear():
            self.refuse(one.message, failure)

    def orphan(self) -> None:
        """Drop all waiting requests, since the proxy they belong to is gone."""
        logger.warning("the proxy is gone: %d requests are dropped; waiting for the next", len(self.queue))
        self.queue.clear()

    def tick(self, now: float) -> None:
        if self.reachability.look(now) and self.link.proxy is None:
            self.report.progress(self.reachability.told)
        for one in self.queue.take_late(now):
            self.refuse(one.message, LATE)
        if self.link.tick(self.load(), now):
            self.orphan()

    def load(self) -> HeartbeatLoad:
        counters = {
            "generated_tokens": 0,
            "generated_before": 0,
            "prompt_tokens_computed": self.computed,
            "prompt_tokens_computed_before": self.computed_before,
            "stale_messages": self.stale,
            "malformed_frames": self.control.malformed,
            **{f"thread_failures_{name}": count for name, count in self.failures.counts().items()},
        }
        return HeartbeatLoad(0, len(self.queue), max(0, SEATS - len(self.queue)), self.step_reporter.steps, counters)

    def close(self) -> None:
        self.control.close(linger=0.5)
        self.poller.close()
        self.context.term()


def make_hello(incarnation: str, config: WorkerConfig, embedder: Embedder) -> Hello:
    """Return what the worker registers with. It has no KV cache: a block stands for one text, block 0 for none."""
    return Hello(
        incarnation,
        SCHEMA,
        config.name,
        ROLE,
        os.getpid(),
        config.device,
        config.served_model_name,
        embedder.identity,
        "",
        "",
        embedder.max_model_len,
        SEATS + 1,
        SEATS,
        embedder.max_model_len,
        config.max_num_batched_tokens,
        kernels=embedder.kernels,
        dtype="float32",
        embedding_size=embedder.model.hidden_size,
    )
