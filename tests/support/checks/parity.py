# SPDX-License-Identifier: Apache-2.0
"""Recorded engine streams, and every way from an engine to the proxy's accounting on which they are replayed (rule
B13).

A recording holds the tokens that the engine samples for each choice of each request. Everything behind sampling is
real: the scheduler, the token path, the workers, their sockets, the handoff, the codec, and the proxy's Request.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from always_draft import AlwaysDraft
from workers import PromptWorker, ScriptedProxy, everyone_clean, open_worker

from pontil.runtime.accounting.counts import Usage
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.engine import Engine
from pontil.runtime.engine.sampling.sampler import Sampled
from pontil.runtime.engine.sequences.batch import Batch, Span
from pontil.runtime.engine.sequences.sequence import FinishReason
from pontil.runtime.engine.sequences.token_logprobs import TokenLogprobs
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.proxy.requests.answer import Delta, Finished
from pontil.runtime.proxy.requests.generation import Generation, submits
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import Ticket
from pontil.runtime.proxy.routing.policy import Route, WorkerLoad
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.codec import decode, encode
from pontil.runtime.wire.messages import Message, Tokens
from pontil.runtime.worker.process.worker_request import key_of, make_request, tokens_frame
from pontil.runtime.worker.start.assembly import WorkerResources

# Too few blocks for two long outputs: the newer one is preempted.
BLOCKS, BLOCK_SIZE = 14, 16


@dataclass(frozen=True)
class Recorded:
    """One request: the sampled tokens of each choice. A client may disconnect after a number of tokens. `cached` prompt
    tokens are known from earlier rounds, with which a request shares prefixes only if `shares` is set."""

    prompt: list[int]
    params: SamplingParams
    draws: tuple[list[int], ...]
    leaves_after: int | None = None
    shares: bool = False
    cached: int = 0


# Consecutive rounds of concurrent requests, by id. The next round starts as soon as the last response of one has ended,
# before any cleanup.
Recording = list[dict[str, Recorded]]


@dataclass(frozen=True)
class Outcome:
    """The proxy's final record of a request; `ids`, `texts`, `reasons` and `counts` by choice. `end` is None where the
    client disconnected."""

    ids: list[list[int]]
    delivered: list[list[int]]
    texts: list[str]
    logprobs: list[Any]
    reasons: dict[int, str]
    counts: list[int]
    disputed: int
    usage: Usage
    end: tuple[str, Usage] | None


def outcome(request: Request) -> Outcome:
    mailbox, account, end = request.mailbox, request.account, request.mailbox.end
    choices = range(request.params.n)
    deltas = [mailbox.deltas.get(choice, Delta("", [])) for choice in choices]
    finished = isinstance(end, Finished)
    return Outcome(
        [answer.ids for answer in request.answers],
        [delta.ids for delta in deltas],
        [delta.text for delta in deltas],
        [delta.logprobs for delta in deltas],
        dict(sorted(request.reasons.items())),
        [choice.generated if finished else choice.accepted for choice in account.choices],
        account.disputed if finished else 0,
        account.usage if finished else account.running_usage,
        (end.reason, end.usage) if isinstance(end, Finished) else None,
    )


class Tape:
    """Stand-in for a runner that samples recorded tokens. No model is computed."""

    def __init__(self) -> None:
        self.recorded: dict[str, Recorded] = {}

    def put(self, round_: Mapping[str, Recorded]) -> None:
        self.recorded = {key_of(name, 0): one for name, one in round_.items()}

    def into(self, engine: Engine) -> None:
        engine.runner.run = self.run  # type: ignore[method-assign]

    def run(self, batch: Batch) -> list[Sampled]:
        spans = [span for tile in batch.tiles() for span in tile.spans if span.samples]
        return [self.draw(span, choice) for span in spans for choice in span.sequence.choices]

    def draw(self, span: Span, choice: int) -> Sampled:
        """Return the recorded token, for a draft as for a sampled one; nothing is sampled behind a wrong draft."""
        sequence, known = span.sequence, len(span.sequence.output)
        recorded = self.recorded[sequence.id].draws[choice][known:]
        right = next((k for k, draft in enumerate(span.drafts) if recorded[k : k + 1] != [draft]), len(span.drafts))
        tokens = recorded[: right + 1]
        asked = tokens if sequence.params.logprobs is not None else []
        logprobs = [TokenLogprobs(((token, -0.5 * choice, 1),)) for token in asked]
        return Sampled(sequence, choice, tokens, len(tokens), logprobs, len(span.drafts))


@dataclass
class Books:
    """The proxy's requests of one round, fed by frames, all of which are kept."""

    recorded: Mapping[str, Recorded]
    requests: dict[str, Request]
    frames: list[Tokens] = field(default_factory=list)

    @property
    def open(self) -> list[str]:
        return [name for name, one in self.requests.items() if one.mailbox.end is None and not self.has_left(name)]

    def has_left(self, name: str) -> bool:
        limit = self.recorded[name].leaves_after
        return limit is not None and any(len(answer.ids) >= limit for answer in self.requests[name].answers)

    def take(self, frame: Tokens) -> bool:
        """Accept a frame; return whether the client disconnects because of it. Frames for an ended request are
        dropped."""
        self.frames.append(frame)
        if frame.request_id not in self.open:
            return False
        request = self.requests[frame.request_id]
        assert request.attempts.expects(frame.sender, frame.attempt) and request.is_sound(frame)
        request.accept(frame, 0.0)
        return self.has_left(frame.request_id)

    def outcomes(self) -> dict[str, Outcome]:
        return {name: outcome(request) for name, request in self.requests.items()}


def books(round_: Mapping[str, Recorded], route: Route, tokenizer: Tokenizer, play: int, number: int) -> Books:
    """Open the books of a play's round. Requests that share prefixes do so with the rounds of the same play only."""
    made = {
        name: Request.start(
            name,
            Generation(one.prompt, one.params),
            tokenizer,
            0.0,
            Ticket(cache_salt=f"play {play}" if one.shares else f"{number}-{name}"),
        )
        for name, one in round_.items()
    }
    for request in made.values():
        request.begin(route, 0.0)
    return Books(round_, made)


def load(incarnation: str, role: str, endpoint: str = "") -> WorkerLoad:
    return WorkerLoad(incarnation, f"{role}:0", role, endpoint, 0, BLOCKS, 4, 512)


class InProcess:
    """One engine, called directly: its outputs become frames that are accepted without any socket."""

    def __init__(self, machine: WorkerResources) -> None:
        self.machine, self.tape, self.rounds, self.plays = machine, Tape(), 0, 0
        self.tape.into(self.machine.engine)

    @property
    def engines(self) -> list[Engine]:
        return [self.machine.engine]

    @property
    def preemptions(self) -> int:
        return self.machine.scheduler.preemptions

    def play(self, recording: Recording) -> list[dict[str, Outcome]]:
        self.plays += 1
        made = [self.play_round(round_) for round_ in recording]
        assert not self.machine.engine.sequences and self.machine.pool.available == self.machine.pool.capacity
        return made

    def play_round(self, round_: Mapping[str, Recorded]) -> dict[str, Outcome]:
        engine, self.rounds = self.machine.engine, self.rounds + 1
        self.tape.put(round_)
        told = books(round_, Route.alone(load("w", "mixed")), self.machine.tokenizer, self.plays, self.rounds)
        sent = [message for request in told.requests.values() for message in submits(request, "proxy")]
        worker_requests = {
            worker_request.key: worker_request
            for worker_request in (make_request(message, self.machine) for message in sent)
        }
        for worker_request in worker_requests.values():
            engine.add(worker_request.sequence)
        while engine.has_work:
            for output in engine.step():
                if told.take(tokens_frame("w", worker_requests[output.sequence.id], output)):
                    engine.end(output.sequence.id, FinishReason.ABORTED)
        return told.outcomes()


def replayed(round_: Mapping[str, Recorded], way: OverSockets, order: Callable[[Tokens], Any]) -> dict[str, Outcome]:
    """Return the outcome of the last round's frames in another order, each delivered twice, through the codec."""
    heard = way.proxy.books
    assert heard is not None
    told = books(round_, way.route, way.workers[0].machine.tokenizer, 0, 0)
    for frame in sorted(heard.frames, key=order):
        told.take(frame)
        again = decode(encode(frame))
        assert isinstance(again, Tokens)
        told.take(again)
    return told.outcomes()


class ParityProxy(ScriptedProxy):
    """Scripted proxy that accounts for the frames of real workers."""

    books: Books | None = None

    def hear(self, message: Message) -> None:
        super().hear(message)
        if isinstance(message, Tokens) and self.books is not None and self.books.take(message):
            for cancel in self.books.requests[message.request_id].cancels(self.incarnation):
                assert self.server.send(cancel)


@dataclass
class OverSockets:
    """Real workers: one mixed worker, or a pair with real KV transfers."""

    proxy: ParityProxy
    route: Route
    workers: list[PromptWorker]
    tape: Tape = field(default_factory=Tape)
    rounds: int = 0
    plays: int = 0

    def __post_init__(self) -> None:
        for worker in self.workers:
            self.tape.into(worker.machine.engine)

    @property
    def preemptions(self) -> int:
        return sum(worker.machine.scheduler.preemptions for worker in self.workers)

    @property
    def engines(self) -> list[Engine]:
        return [worker.machine.engine for worker in self.workers]

    @property
    def handoffs(self) -> int:
        return sum(worker.decode.counts.complete for worker in self.workers)

    def play(self, recording: Recording) -> list[dict[str, Outcome]]:
        self.plays += 1
        made = [self.play_round(round_) for round_ in recording]
        everyone_clean(self.proxy)
        self.hear_all()
        return made

    def hear_all(self) -> None:
        """Read everything that workers sent before they received a cancellation; it would be taken for frames of the
        next recording, which has the same ids. A heartbeat comes after all earlier messages."""
        self.proxy.heartbeats.clear()
        for worker in self.workers:
            worker.link.links[0].next_send = 0.0
        self.proxy.turn_until(lambda: len(self.proxy.heartbeats) == len(self.workers))

    def has_any(self, names: Iterable[str]) -> bool:
        """Return whether a worker still has one of these requests."""
        open_ones = {request.request_id for worker in self.workers for request in worker.requests.values()}
        return not open_ones.isdisjoint(names)

    def play_round(self, round_: Mapping[str, Recorded]) -> dict[str, Outcome]:
        self.rounds += 1
        # A prefill worker hears from its peer that a request is over, perhaps later than the proxy hears the answer's
        # end. Until then it would take the same id for the same request.
        self.proxy.turn_until(lambda: not self.has_any(round_))
        self.tape.put(round_)
        told = self.proxy.books = books(round_, self.route, self.workers[0].machine.tokenizer, self.plays, self.rounds)
        for request in told.requests.values():
            for message in submits(request, self.proxy.incarnation):
                # A request's id may be reused at once; a transfer's never is.
                named = message.transfer_id and f"{message.transfer_id}.{self.rounds}"
                assert self.proxy.server.send(replace(message, transfer_id=named))
        self.proxy.turn_until(lambda: not told.open)
        return told.outcomes()


def open_small(
    model: Path,
    folder: Path,
    name: str,
    role: Literal["prefill", "decode", "mixed"],
    kv: str,
    drafts: int,
    draft_model: Path | None = None,
) -> PromptWorker:
    shape = open_checkpoint(model).config
    layout = KVLayout(
        BLOCK_SIZE, shape.num_layers, shape.num_kv_heads, shape.head_dim, shape.dtype, planes=shape.kv_planes
    )
    # The draft model has the model's own sizes, and as many blocks.
    shares = 2 if draft_model is not None and role != "prefill" else 1
    worker = open_worker(
        model, folder, name, role, kv_cache_memory=shares * (BLOCKS + 1) * layout.block_bytes, block_size=BLOCK_SIZE,
        kv_connector=kv, speculative_tokens=drafts, speculative_model=draft_model and str(draft_model),
    )  # fmt: skip
    drafter = worker.machine.scheduler.drafts.drafter
    if isinstance(drafter, ModelDrafter):
        # So tiny a model saves no time that could be measured.
        drafter.policy = AlwaysDraft(with_lookup=True)
    return worker


WAYS = ("in process", "one worker", "pair over shm", "pair over tcp")
Way = InProcess | OverSockets


@contextmanager
def opened(name: str, model: Path, folder: Path, drafts: int = 0, draft_model: Path | None = None) -> Iterator[Way]:
    """Open one of `WAYS`, all of whose blocks must be free at the end. Its workers draft `drafts` tokens at a time, by
    this draft model if there is one."""
    if name == "in process":
        alone = open_small(model, folder, "mixed:0", "mixed", "shm", drafts, draft_model)
        yield InProcess(alone.machine)
        alone.close()
        return
    proxy = ParityProxy(folder)
    if name == "one worker":
        whole = open_small(model, folder, "mixed:0", "mixed", "shm", drafts, draft_model)
        proxy.admit(whole)
        yield OverSockets(proxy, Route.alone(load(whole.incarnation, "mixed")), [whole])
    else:
        kv = name.rpartition(" ")[2]
        prefill, decode = (
            open_small(model, folder, f"{role}:0", role, kv, drafts, draft_model) for role in ("prefill", "decode")
        )
        proxy.admit(prefill, decode)
        sending = load(prefill.incarnation, "prefill", prefill.peers_in.endpoint)
        yield OverSockets(proxy, Route(sending, load(decode.incarnation, "decode")), [prefill, decode])
    everyone_clean(proxy)
    proxy.close()
