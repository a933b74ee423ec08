# SPDX-License-Identifier: Apache-2.0
"""A real proxy over scripted workers of a model of three stages, in steps that the test makes."""

import os
from collections import deque
from collections.abc import Callable, Iterator
from copy import deepcopy
from itertools import count
from typing import Any

from proxy_configs import bare_config
from stage_model import GRAPH, RATE, TALKER_END, Kept, StageJob, answer_of, sound_of

from pontil.runtime.proxy.proxy import TICK, Proxy
from pontil.runtime.stages.graph.part import GraphPart, graph_part
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.wire.messages import (
    SCHEMA,
    Cancel,
    Hello,
    Inputs,
    Message,
    NodeOutput,
    NodeTask,
    Release,
    Starved,
    Submit,
    Tokens,
    Unread,
)

# Frames in an output, and steps between two complaints.
CHUNK, PATIENCE = 3, 3
# The media of a prompt.
MEDIA = b"a picture"


class StageSite(Proxy):
    """A proxy whose messages arrive `lag` steps after they were sent. `count` is the length of every answer."""

    def __init__(self, tokenizer: Tokenizer, count: int = 5, lag: int = 0, **options: Any) -> None:
        self.now, self.steps = 0.0, 0
        config = bare_config("ipc:///nowhere", **options)
        super().__init__(config, tokenizer, lambda: self.now, GRAPH)
        self.count, self.lag = count, lag
        self.workers: dict[str, StageWorker] = {}
        self.mail: deque[tuple[int, Message]] = deque()
        self.missed: list[tuple[int, str]] = []
        self.handed: set[tuple[str, int]] = set()
        self.released: set[tuple[str, str]] = set()
        self.unread: list[tuple[str, str]] = []

    def send(self, message: Message) -> bool:
        worker = self.workers.get(getattr(message, "receiver", ""))
        if worker is not None:
            worker.take(deepcopy(message))
        return True

    def post(self, message: Message) -> None:
        self.mail.append((self.steps + self.lag, message))

    def deliver(self) -> None:
        while self.mail and self.mail[0][0] <= self.steps:
            self.router.on_messages([self.mail.popleft()[1]])

    def step(self) -> None:
        """Let each worker do one thing, deliver what is due, and notice deaths."""
        self.steps += 1
        self.now += 0.01
        for worker in list(self.workers.values()):
            worker.work()
        self.deliver()
        for due, name in self.missed.copy():
            if due <= self.steps:
                self.missed.remove((due, name))
                gone = [one for one in self.registry.workers.values() if one.hello.sender == name]
                self.lose(self.registry.remove(gone), "died", "died")
        if self.steps % 25 == 0:
            self.now += TICK
            for one in self.registry.workers.values():
                one.contact.last_heard = self.now
            self.tick()

    def kill(self, name: str, notice: int = 0) -> None:
        """End a worker; the proxy notices `notice` steps later."""
        del self.workers[name]
        self.missed.append((self.steps + notice, name))

    def run_until_idle(self, most: int = 1000) -> None:
        most += self.steps
        while self.requests or self.mail:
            assert self.steps < most, list(self.requests)
            self.step()

    def join(self, *names: str, **hello: Any) -> None:
        """Register workers, named like talker.prefill:0 or wav:1."""
        for name in names:
            node, _, role = name.split(":")[0].partition(".")
            self.workers[name] = StageWorker(self, name, node)
            fields = {"role": role or ("mixed" if GRAPH.node(node).generates else "node"), "node": node} | hello
            values: dict[str, Any] = {
                "sender": name, "schema": SCHEMA, "name": name, "pid": os.getpid(), "device": "cpu", "model": node,
                "model_fingerprint": node, "kv_fingerprint": node, "peer_endpoint": f"ipc://{name}", "block_size": 16,
                "num_blocks": 65, "max_num_seqs": 8, "max_model_len": 512, "max_num_batched_tokens": 256,
            }  # fmt: skip
            self.router.on_messages([Hello(**(values | fields))])


class StageWorker:
    """One worker of a stage: every `work` takes an item of each job, computes one place of it, or says something."""

    def __init__(self, site: StageSite, name: str, node: str) -> None:
        self.site, self.name, self.node = site, name, node
        self.jobs: dict[str, StageJob] = {}
        self.kept: dict[tuple[str, str], Kept] = {}
        self.tasks: list[Submit | NodeTask] = []
        self.silent = self.forgets = False

    def take(self, message: Message) -> None:
        if isinstance(message, Submit | NodeTask):
            self.tasks.append(message)
            part = GraphPart("", self.node, "") if message.graph is None else graph_part(message.graph)
            job = self.jobs[message.request_id] = StageJob(message, part)
            job.steps = self.steps_of(job, message)
            job.producers = [peer for peers in job.part.inputs.values() for peer, _ in peers]
            for edge in job.part.outputs:
                self.kept.setdefault((job.part.run, edge), Kept()).stop = None
        elif isinstance(message, Cancel):
            self.jobs.pop(message.request_id, None)
        elif isinstance(message, Inputs) and message.request_id in self.jobs:
            self.jobs[message.request_id].producers = [peer for peer, _ in message.producers]
        elif isinstance(message, Unread):
            self.site.unread.append((self.name, message.edge))
        elif isinstance(message, Release):
            self.site.released.add((self.name, message.run))
            self.kept = {key: kept for key, kept in self.kept.items() if key[0] != message.run}

    def steps_of(self, job: StageJob, task: Submit | NodeTask) -> Iterator[bool]:
        if isinstance(task, NodeTask):
            if self.node == "eyes":
                return self.see(job, task)
            return self.sound(job, task) if task.data is None else self.hear(job, task)
        return (self.think if self.node == "thinker" else self.talk)(job, task)

    def say(self, message: Any, job: StageJob, **fields: Any) -> None:
        task = job.task
        self.site.post(message(self.name, self.site.incarnation, task.request_id, task.attempt, **fields))

    def work(self) -> None:
        for name, job in list(self.jobs.items()):
            if not self.silent:
                if job.edge is not None:
                    self.pull(job, job.edge)
                if next(job.steps, None) is None:
                    self.jobs.pop(name, None)

    def pull(self, job: StageJob, edge: str) -> None:
        """Take the next item that is missing from a producer that has it; complain of those that are gone."""
        sources = {name: self.site.workers.get(name) for name in job.producers}
        there = {
            name: worker.kept[job.part.run, edge]
            for name, worker in sources.items()
            if worker is not None and not worker.forgets and (job.part.run, edge) in worker.kept
        }
        base = len(job.items)
        covered = any(kept.covers(base) for kept in there.values())
        if not covered and not job.is_all and job.waits <= self.site.steps:
            job.waits = self.site.steps + PATIENCE
            for name in sources.keys() - there.keys():
                self.say(Starved, job, edge=edge, next_index=base, lost=name)
        for kept in there.values():
            if kept.last is not None:
                assert job.last in (None, kept.last), "one end for all"
                job.last = kept.last
            for index, item in sorted(kept.items.items()):
                if index not in job.taken:
                    job.taken[index] = item
                    return
                assert job.taken[index] == item, "an index has one item, whoever makes it"

    def keep(self, job: StageJob, index: int, item: Any) -> None:
        for edge in job.part.outputs:
            self.kept[job.part.run, edge].items.setdefault(index, item)

    def close(self, job: StageJob, last: int) -> None:
        for edge in job.part.outputs:
            self.kept[job.part.run, edge].last = last

    def think(self, job: StageJob, task: Submit) -> Iterator[bool]:
        """Compute the prompt, whose items are its ids, then say the answer, once for each choice: an id is the item of
        its place."""
        rows, given = job.rows, job.given
        if task.phase == "decode":
            yield from self.until(lambda: self.is_handed(task))
        else:
            if job.edge is not None:
                yield from self.until(lambda: job.is_all)
                assert bytes(job.items) == MEDIA, "the prompt is computed with all of its media"
            for place, item in enumerate(task.prompt if job.is_replay else task.prompt + given[:-1]):
                self.keep(job, place, item)
                yield True
        if job.is_replay:
            self.tell(job, 0, [], opens=True, reason="length", made=0)
            self.close(job, len(task.prompt))
            return
        answer = answer_of(task.prompt, self.site.count)
        if task.phase == "prefill":
            for choice in job.choices:
                job.choice = choice
                self.hand_over(job, task, answer[:1], ends=len(answer) == 1)
            if len(answer) == 1:
                self.close(job, rows)
            return
        for choice in job.choices:
            job.choice = choice
            for number in range(job.first, len(answer)):
                if number:
                    self.keep(job, rows + number - 1, answer[number - 1])
                ended = number + 1 == len(answer)
                self.say_next(job, number, answer[number], ended)
                if ended:
                    self.close(job, rows + number)
                yield True

    def talk(self, job: StageJob, task: Submit) -> Iterator[bool]:
        """Say a frame for each item of the answer, and some more; frames that were said are items again."""
        if task.phase == "decode":
            yield from self.until(lambda: self.is_handed(task))
        else:
            for number, first in enumerate(job.given):
                yield from self.until(lambda number=number: job.has_frame(number))  # type: ignore[misc]
                frame = job.frame(number)
                assert frame == task.frames[number] and frame[0] == first, (
                    "the codes that the client's sound is made of"
                )
                if frame[0] != TALKER_END:
                    self.keep(job, number, frame)
                yield True
        if job.is_replay:
            self.tell(job, 0, [], opens=True, reason="length", made=0)
            self.close(job, len(job.given) - 1)
            return
        if task.phase == "prefill":
            yield from self.until(lambda: job.has_frame(0))
            frame = job.frame(0)
            self.keep(job, 0, frame)
            self.hand_over(job, task, [frame[0]], ends=False, frames=[frame])
            return
        for number in count(job.first):
            yield from self.until(lambda number=number: job.has_frame(number))  # type: ignore[misc]
            frame = job.frame(number)
            ended = frame[0] == TALKER_END
            if not ended:
                self.keep(job, number, frame)
            self.say_next(job, number, frame[0], ended, frames=[frame])
            if ended:
                self.close(job, number)
                return
            yield True

    def until(self, condition: Callable[[], bool]) -> Iterator[bool]:
        while not condition():
            yield True

    def is_handed(self, task: Submit) -> bool:
        return (task.request_id, task.attempt) in self.site.handed

    def hand_over(self, job: StageJob, task: Submit, ids: list[int], ends: bool, **frames: Any) -> None:
        """Say the first token, unless the client has it, and let the decode worker go on."""
        if job.given:
            self.tell(job, 1, [], opens=True, made=0)
        else:
            self.tell(job, 0, ids, opens=True, made=1, reason="stop" if ends else None, **frames)
        for edge in job.part.outputs:
            kept = self.kept[job.part.run, edge]
            kept.stop = max(kept.items) + 1
        if not ends:
            self.site.handed.add((task.request_id, task.attempt))

    def say_next(self, job: StageJob, number: int, token: int, ended: bool, **frames: Any) -> None:
        made = number + 1 - job.first if ended else None
        self.tell(
            job, number, [token], opens=number == job.first, reason="stop" if ended else None, made=made, **frames
        )

    def tell(
        self, job: StageJob, index: int, ids: list[int], opens: bool = False, reason: str | None = None,
        made: int | None = None, **more: Any,
    ) -> None:  # fmt: skip
        counts = {}
        if opens and job.choice == job.choices[0]:
            rows, decodes = len(job.task.prompt), job.task.phase == "decode"  # type: ignore[union-attr]
            counts = {"cached_tokens": 0} | ({} if decodes else {"prompt_tokens": rows, "computed_tokens": rows})
        stated = {"choice": job.choice, "finish_reason": reason, "generated_tokens": made}
        self.say(Tokens, job, index=index, ids=ids, **stated, **counts, **more)

    def sound(self, job: StageJob, task: NodeTask) -> Iterator[bool]:
        """Make an output of each chunk of frames; the last one has the rest."""
        for number in count():
            start, end = CHUNK * number, CHUNK * (number + 1)
            yield from self.until(lambda end=end: job.is_all or len(job.items) > end)  # type: ignore[misc]
            final = job.is_all and len(job.items) <= end
            if number >= task.delivered:
                data = sound_of(job.items[start:end])
                self.say(NodeOutput, job, index=number, kind="audio", data=data, final=final, sample_rate=RATE)
            if final:
                return
            yield True

    def see(self, job: StageJob, task: NodeTask) -> Iterator[bool]:
        """Make an item of each byte, and no output."""
        for place, item in enumerate(task.data or b""):
            self.keep(job, place, item)
            yield True
        self.close(job, len(task.data or b""))
        self.say(NodeOutput, job, index=task.delivered, kind="text", data=b"", final=True)

    def hear(self, job: StageJob, task: NodeTask) -> Iterator[bool]:
        """Make text of bytes: a word in each output."""
        words = (task.data or b"").split(b" ")
        for index in range(task.delivered, len(words)):
            final = index + 1 == len(words)
            self.say(NodeOutput, job, index=index, kind="text", data=words[index].upper(), final=final)
            yield True
