# SPDX-License-Identifier: Apache-2.0
"""A worker without a model: the real wire protocol over real sockets, a scripted output, and misbehaviour on demand."""

import math
import queue
import secrets
import struct
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from pontil.runtime.proxy.fleet.registry import Registry
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.detokenizer import Detokenizer, StopStrings
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.links.sockets import Poller, WorkerSocket, open_context
from pontil.runtime.wire.messages import (
    SCHEMA,
    AdapterTable,
    Cancel,
    Embed,
    Embedding,
    Heartbeat,
    Hello,
    Message,
    NodeOutput,
    NodeTask,
    PrefixRequest,
    Refused,
    Submit,
    Tokens,
    Welcome,
)

DEADLINE = 60.0
Script = Callable[["ScriptedWorker", Submit], Iterator[Message]]
Embedder = Callable[["ScriptedWorker", Embed], Iterator[Message]]
Computer = Callable[["ScriptedWorker", NodeTask], Iterator[Message]]
# The length of a scripted worker's vectors.
EMBEDDING_SIZE = 4


def eventually(condition: Callable[[], object], what: str = "the condition") -> None:
    """Wait until `condition` holds."""
    end = time.monotonic() + DEADLINE
    wakeup = threading.Event()
    while not condition():
        assert time.monotonic() < end, f"{what} did not come true in time"
        wakeup.wait(0.005)


# The process ids of scripted workers, each its own.
PIDS = count(1 << 22)


class ScriptedWorker:
    """Worker that answers every prompt with `answer` (then EOS), cut at max_tokens and at stop strings, one token a
    frame.

    `script` replaces that. `pace` is the time between frames in seconds. `say` sends any message.
    """

    def __init__(
        self, control: str, name: str, tokenizer: Tokenizer, answer: Sequence[int] = (), *, role: str = "mixed",
        script: Script | None = None, pace: float = 0.0, embedder: Embedder | None = None,
        computer: Computer | None = None, **hello: object,
    ) -> None:  # fmt: skip
        self.name, self.role, self.tokenizer = name, role, tokenizer
        self.answer = list(answer)
        self.script = script or proper
        self.pace = pace
        self.incarnation = f"{name}-{secrets.token_hex(4)}"
        self.pid = next(PIDS)
        self.submits: queue.Queue[Submit] = queue.Queue()
        self.embeds: queue.Queue[Embed] = queue.Queue()
        self.embedder = embedder or vector_of
        self.tasks: queue.Queue[NodeTask] = queue.Queue()
        self.computer = computer
        self.on_adapters: Callable[[AdapterTable], None] = lambda told: None
        self.cancels: queue.Queue[Cancel] = queue.Queue()
        self.refused: str | None = None
        self.wants_prefixes, self.prefix_requests = False, 0
        self.proxy = ""
        self.counters: dict[str, int] = {}
        self.generated = 0
        self.free_blocks = self.room_kept = 64
        self.gauges: dict[str, int] | None = None
        self.phases: dict[str, str] = {}
        self.computed: set[str] = set()
        self.control = control
        self.hello_fields: dict[str, object] = {
            "schema": SCHEMA, "pid": self.pid, "device": "cpu", "model": "tiny", "model_fingerprint": "m",
            "kv_fingerprint": "k", "peer_endpoint": f"ipc:///tmp/{name}", "block_size": 16, "num_blocks": 65,
            "max_num_seqs": 8, "max_model_len": 512, "max_num_batched_tokens": 256,
        } | hello  # fmt: skip
        self.outbox: deque[Message] = deque()
        self.active: dict[str, Iterator[Message]] = {}
        self.stopping = threading.Event()
        self.poller = Poller()
        # Not closed at the end of the thread: a test may still call `say` then.
        weakref.finalize(self, self.poller.close)
        self.thread = threading.Thread(target=self.run, name=name, daemon=True)

    def start(self, wait: bool = True) -> "ScriptedWorker":
        self.thread.start()
        if wait:
            eventually(lambda: self.proxy, f"{self.name}'s welcome")
        return self

    def say(self, message: Message) -> None:
        """Queue a message; callable from any thread."""
        self.outbox.append(message)
        self.poller.wake()

    def die(self) -> None:
        """Stop without a goodbye; callable from any thread."""
        self.stopping.set()
        self.poller.wake()
        self.thread.join(DEADLINE)

    def fall_silent(self, registry: Registry) -> None:
        """Stop without a goodbye, and let the time to live pass at once; again, if a last heartbeat comes after it."""
        self.die()

        def is_removed() -> bool:
            if known := registry.workers.get(self.incarnation):
                known.contact.last_heard = -math.inf
            return known is None

        eventually(is_removed, f"the end of {self.name}'s time to live")

    def kept_blocks(self, submit: Submit) -> list[int] | None:
        """Return the blocks of a prompt that is kept, as a pool that was used before hands them out."""
        count = -(-len(submit.prompt) // 16)
        return [7 + 3 * index for index in range(count)] if count <= self.room_kept else None

    def tokens(self, submit: Submit, index: int, ids: Sequence[int], **fields: object) -> Tokens:
        return Tokens(
            self.incarnation, self.proxy, submit.request_id, submit.attempt, index, list(ids), **fields,  # type: ignore[arg-type]
        )  # fmt: skip

    def run(self) -> None:
        context = open_context()
        socket = WorkerSocket(context, self.incarnation, self.control)
        self.poller.register(socket)
        beat = 0.0
        while not self.stopping.is_set():
            if time.monotonic() >= beat:
                self.beat(socket)
                beat = time.monotonic() + 0.2
            for message in socket.receive_all():
                self.hear(message)
            self.speak(socket)
            self.poller.wait(self.pace if self.active else 0.1)
        socket.close()
        context.term()

    def beat(self, socket: WorkerSocket) -> None:
        if self.proxy:
            counters = {"generated_tokens": self.generated, "generated_before": 0} | self.counters
            beat = Heartbeat(
                self.incarnation, self.proxy, len(self.active), 0, self.free_blocks, 0, counters, self.gauges
            )
            socket.send(beat)
        elif self.refused is None:
            fields = {"sender": self.incarnation, "name": self.name, "role": self.role} | self.hello_fields
            socket.send(Hello(**fields))  # type: ignore[arg-type]

    def hear(self, message: Message) -> None:
        if isinstance(message, Welcome):
            self.proxy, self.wants_prefixes = message.sender, message.prefixes
        elif isinstance(message, PrefixRequest):
            self.prefix_requests += 1
        elif isinstance(message, Refused):
            self.refused = message.reason
        elif isinstance(message, Submit):
            self.phases[message.request_id] = message.phase
            self.submits.put(message)
            self.active[message.request_id] = self.script(self, message)
        elif isinstance(message, AdapterTable):
            self.on_adapters(message)
        elif isinstance(message, Embed):
            self.embeds.put(message)
            self.active[message.request_id] = self.embedder(self, message)
        elif isinstance(message, NodeTask) and self.computer is not None:
            self.tasks.put(message)
            self.active[message.request_id] = self.computer(self, message)
        elif isinstance(message, Cancel):
            self.active.pop(message.request_id, None)
            self.cancels.put(message)

    def speak(self, socket: WorkerSocket) -> None:
        """Send one frame of each request in progress, then the test's messages."""
        for name, frames in list(self.active.items()):
            frame = next(frames, None)
            if frame is None:
                del self.active[name]
            else:
                self.send(socket, frame)
        while self.outbox:
            self.send(socket, self.outbox.popleft())

    def send(self, socket: WorkerSocket, message: Message) -> None:
        """Send, waiting under back-pressure (B12). Tokens that decode repeats from prefill are not counted as its
        own."""
        if isinstance(message, Tokens):
            repeats = message.index == 0 and self.phases.get(message.request_id) == "decode"
            self.generated += len(message.ids) - repeats
        while not socket.send(message) and not self.stopping.wait(0.001):
            pass


def generated(worker: ScriptedWorker, submit: Submit, choice: int) -> Iterator[tuple[int, str | None, str | None]]:
    """Yield each token with finish_reason and stop_match, as a real engine would. Choice c drops the first c tokens of
    the answer."""
    params = SamplingParams.from_wire(submit.sampling)
    detokenizer = Detokenizer(worker.tokenizer, params.skip_special_tokens)
    stops = StopStrings(params.stop, params.include_stop_str_in_output)
    eos = worker.tokenizer.eos_ids[0]
    answer = worker.answer[choice:]
    for index in range(params.max_tokens):
        token = answer[index] if index < len(answer) else eos
        stops.feed(detokenizer.add([token]))
        ended = stops.matched is not None or token in params.stop_token_ids
        reason = "stop" if ended or (token == eos and not params.ignore_eos) else None
        if reason is None and index + 1 == params.max_tokens:
            reason = "length"
        yield token, reason, stops.matched
        if reason is not None:
            return


def proper(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Yield the frames of a correct worker for its phase (A3), one choice after the other."""
    opening = prompt_counts(worker, submit)
    for choice in submit.choices or range(SamplingParams.from_wire(submit.sampling).n):
        yield from proper_choice(worker, submit, choice, opening)
        opening = {name: count for name, count in opening.items() if name != "computed_tokens"}


def with_logits(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """A kernel whose third row of logits has one wrong bit."""
    for message in proper(worker, submit):
        if isinstance(message, Tokens) and message.index <= 2 < message.index + len(message.ids) and message.top_logits:
            at = len(message.top_logits) // len(message.ids) * (2 - message.index) + 4
            wrong = bytes([message.top_logits[at] ^ 1])
            message = replace(message, top_logits=message.top_logits[:at] + wrong + message.top_logits[at + 1 :])
        yield message


def prompt_counts(worker: ScriptedWorker, submit: Submit) -> dict[str, int]:
    """Return the worker's cached and computed prompt tokens. Tokens that it computed for an earlier attempt, perhaps
    unreported, are found again and do not count as cached (A9)."""
    if submit.phase == "decode":
        return {"cached_tokens": 0}
    found = len(submit.prompt) - 1 if submit.request_id in worker.computed else 0
    worker.computed.add(submit.request_id)
    counts = {"cached_tokens": found, "computed_tokens": len(submit.prompt) - found}
    return counts | ({"first_cached_tokens": 0} if found else {})


def proper_choice(worker: ScriptedWorker, submit: Submit, choice: int, opening: dict[str, int]) -> Iterator[Message]:
    given = len(submit.delivered[choice]) if submit.delivered else 0
    if given and submit.phase == "prefill":
        counts = {"generated_tokens": 0, "prompt_tokens": len(submit.prompt)}
        yield worker.tokens(submit, 1, [], choice=choice, **counts, **opening)
        return
    if submit.sampling["max_tokens"] == 0:
        if submit.phase != "decode":
            asked = choice == 0 and submit.sampling["prompt_logprobs"] is not None
            told = {"prompt_logprobs": prompt_entries(submit)} if asked else {}
            stated: dict[str, Any] = {
                "finish_reason": "length",
                "generated_tokens": 0,
                "prompt_tokens": len(submit.prompt),
            }
            yield worker.tokens(submit, 0, [], choice=choice, **stated, **told, **opening)
        return
    for index, (token, reason, match) in enumerate(generated(worker, submit, choice)):
        if index < given:
            continue
        said = {"choice": choice, "finish_reason": reason, "stop_match": match, **known(submit, [token])}
        if submit.phase != "decode" and index == choice == 0 and submit.sampling["prompt_logprobs"] is not None:
            said["prompt_logprobs"] = prompt_entries(submit)
        if submit.phase == "prefill":
            counts = {"generated_tokens": 1, "prompt_tokens": len(submit.prompt)}
            yield worker.tokens(submit, 0, [token], **said, **counts, **opening)
            return
        own = index + 1 - max(given, submit.phase == "decode")
        if submit.phase == "decode" and index == 0 and reason is not None:
            return  # prefill ends the request
        cached = opening if index == given else {"cached_tokens": 0} if reason else {}
        kept = {"kept_blocks": worker.kept_blocks(submit)} if submit.phase == "hold" and reason else {}
        yield worker.tokens(submit, index, [token], **said, generated_tokens=own if reason else None, **cached, **kept)


def known(submit: Submit, ids: list[int]) -> dict[str, Any]:
    """Return logprobs and the highest logits if they were requested."""
    count, named = submit.sampling["logprobs"], submit.sampling["logprob_token_ids"]
    shown = [[token, -0.5 * rank, rank] for rank, token in enumerate(named, 1)]
    logprobs = {} if count is None else {"logprobs": [entries(token, count) + shown for token in ids]}
    most = submit.sampling["top_logits"]
    return logprobs | ({"top_logits": b"".join(top_logits_of(token, most) for token in ids)} if most else {})


def top_logits_of(token: int, most: int) -> bytes:
    """Return the highest logits of a row from which this token was drawn: they follow from its id."""
    return b"".join(struct.pack("<If", token + rank, -0.5 * rank) for rank in range(most))


def prompt_entries(submit: Submit) -> list[list[list[float]]]:
    return [[], *(entries(number, 0) for number in submit.prompt[1:])]


def entries(token: int, count: int) -> list[list[float]]:
    """Return logprobs in which the token ranks second; the others follow from its id."""
    return [[token, -1.5, 2], *([token + rank - 1, -0.5 * rank, rank] for rank in range(1, count + 1))]


def vector_of(worker: ScriptedWorker, embed: Embed, **wrong: Any) -> Iterator[Message]:
    """Yield the vector of a text: its ids, as many as a vector has. Some fields may be wrong."""
    worker.counters |= {"prompt_tokens_computed_before": 0}
    count, size = len(embed.prompt), embed.dimensions or EMBEDDING_SIZE
    numbers = [float(one) for one in (*embed.prompt, *(0,) * size)][:size]
    worker.counters["prompt_tokens_computed"] = worker.counters.get("prompt_tokens_computed", 0) + count
    fields = {"vector": struct.pack(f"<{size}f", *numbers), "prompt_tokens": count, "computed_tokens": count} | wrong
    yield Embedding(worker.incarnation, worker.proxy, embed.request_id, embed.attempt, **fields)  # type: ignore[arg-type]


def output(worker: ScriptedWorker, task: NodeTask, index: int, kind: str, data: bytes, **fields: Any) -> NodeOutput:
    """Return an output of a node."""
    return NodeOutput(worker.incarnation, worker.proxy, task.request_id, task.attempt, index, kind, data, **fields)


def silent(worker: ScriptedWorker, submit: Submit) -> Iterator[Message]:
    """Send nothing; the test sends the messages."""
    return iter(())
