# SPDX-License-Identifier: Apache-2.0
"""The measurement of a profile: a worker's own engine, step after step, in this process."""

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from math import inf
from pathlib import Path
from statistics import median
from typing import Any

import torch

from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.cache.tier.disk_tier import RECORD_BYTES, DiskTier, slot_bytes_of
from pontil.runtime.cache.tier.measure import seconds_of_block, seconds_of_full
from pontil.runtime.config.worker_config import WorkerConfig, worker_config
from pontil.runtime.engine.drafts.model import DraftModel
from pontil.runtime.engine.drafts.model_drafter import ModelDrafter
from pontil.runtime.engine.drafts.policy import AdaptivePolicy
from pontil.runtime.engine.runner.runner import Launched, Runner
from pontil.runtime.engine.sequences.batch import Batch
from pontil.runtime.engine.sequences.sequence import FinishReason, Sequence
from pontil.runtime.errors import ModelError
from pontil.runtime.foundation.draft_names import MTP
from pontil.runtime.loaders.builtin import resolve_model
from pontil.runtime.planner.device_profile import DiskTimes, DraftTimes, Points, ProfiledModel, StepTimes, WorkerSizes
from pontil.runtime.planner.step_costs import StepWork
from pontil.runtime.planner.typical_times import TypicalTimes
from pontil.runtime.probe.processor_name import processor_name
from pontil.runtime.reporting import NoReports
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.transfer.connector import Pull
from pontil.runtime.transfer.shm.connector import ShmConnector
from pontil.runtime.worker.start.assembly import WorkerResources, assemble, interleaved

CPU = "cpu"

# Rows that decode and their contexts, prompts' lengths and what is before them, and rows beside prompts.
ROWS, CONTEXTS = (1, 2, 4, 8, 16, 32, 64), (32, 512, 2048)
CHUNKS, BEFORE = (16, 32, 64, 128, 256, 512, 1024, 2048, 8192), (0, 1024)
MIXED_ROWS, MIXED_CONTEXT, MIXED_CHUNKS = (1, 4, 16, 32), 128, (16, 64, 256, 1024)
# Tokens of context that a run of decoding sequences computes before, at most: they take long on a large model.
MOST_CONTEXT = 2048
# Times that all is measured. Between them some time goes by, in which cores may be faster or slower.
PASSES = 5
# Tokens up to which steps are short, of all contexts or of a prompt. They are measured at more moments: a few of them
# take so little that the speed of a moment would be theirs.
SHORT_CONTEXT, SHORT_PROMPT = 512, 64
# The fewest prompt tokens of a step while others decode.
LEAST_CHUNK = 16
# Positions that a draft model has read before it guesses, rows of texts that it reads, and its most guesses.
GUESSED_BEHIND, READ_ROWS, MOST_GUESSED = (32, 512), (1, 2, 4, 8, 16, 32, 64, 128), 1024
PULLED_BLOCKS, PULLS = (1, 4, 16, 64), 5
PULL_WITHIN = 60.0
# Blocks that a disk is measured with, and as many bytes at most.
DISK_BLOCKS, DISK_BYTES = 32, 64 << 20


class WatchedRunner:
    """A runner that notes the work of the batches that it was given."""

    def __init__(self, runner: Runner) -> None:
        self.runner, self.keeps_states = runner, runner.keeps_states
        self.work = list[StepWork]()

    @property
    def answers_are_found(self) -> bool:
        return self.runner.answers_are_found

    def launch(self, batch: Batch) -> Launched:
        self.work.append(StepWork.of(batch.spans))
        return self.runner.launch(batch)

    def run(self, batch: Batch) -> object:
        return self.runner.run(batch)

    def beside(self, storage: KVStorage) -> Runner:
        return self.runner.beside(storage)


class StepMeter:
    """Measures the steps of one engine, each kind `rounds` times in a pass, by a `clock`. `tell` hears of each pass."""

    def __init__(
        self,
        machine: WorkerResources,
        sizes: WorkerSizes,
        rounds: int,
        clock: Callable[[], float],
        tell: Callable[[str], None],
    ) -> None:
        self.engine, self.sizes, self.rounds, self.clock, self.tell = machine.engine, sizes, rounds, clock, tell
        self.watched = WatchedRunner(self.engine.runner)
        self.engine.runner = self.watched  # type: ignore[assignment]
        self.chance, self.made = random.Random(1), 0
        self.vocabulary = machine.config.vocab_size
        self.longest = machine.config.max_model_len

    def measure(self, between: Callable[[], object]) -> StepTimes:
        """Return a point for each kind of step, and no pulls. Between the passes something else is done."""
        times = TypicalTimes[StepWork]()
        for number in range(PASSES):
            if number:
                between()
            self.tell(f"steps, pass {number + 1} of {PASSES}")
            for measured in (self.decode_steps(), self.prompt_steps(), self.mixed_steps()):
                times.add(measured)
                times.add((*self.decode_steps(SHORT_CONTEXT), *self.prompt_steps(SHORT_PROMPT)))
        steps = tuple(point(work, seconds) for work, seconds in times.seconds().items())
        decode, prompt = times.variation(lambda work: not work.tokens), times.variation(lambda work: work.tokens > 0)
        return StepTimes(steps, (), round(decode, 4), round(prompt, 4))

    def decode_steps(self, most: float = inf) -> Iterator[tuple[StepWork, float]]:
        """Yield steps of each number of rows and context, of at most so many tokens in all, all as the first of
        them."""
        for rows in (one for one in ROWS if one <= self.sizes.seats):
            for context in (one for one in CONTEXTS if self.has_room(rows, one, self.rounds)):
                if rows * context > most:
                    break
                self.begin(rows, context, self.rounds)
                steps = [self.step() for _ in range(self.rounds)]
                self.end()
                yield from ((steps[0][0], seconds) for _, seconds in steps)

    def prompt_steps(self, most: float = inf) -> Iterator[tuple[StepWork, float]]:
        """Yield the steps of prompts, of at most so many tokens, that end with each chunk."""
        for before in BEFORE:
            for tokens in (one for one in CHUNKS if one <= self.sizes.step_tokens):
                if before + tokens > most or not self.has_room(1, before + tokens, 1):
                    break
                for _ in range(1 if before else self.rounds):
                    self.add(before + tokens, 1)
                    while self.engine.has_work:
                        yield self.step()

    def mixed_steps(self) -> Iterator[tuple[StepWork, float]]:
        """Yield steps of each number of rows and of prompt tokens beside them, all as the first of them."""
        most = min(self.sizes.interleaved_tokens or self.sizes.step_tokens, self.longest - 1)
        chunks = sorted({most, *(one for one in MIXED_CHUNKS if one < most)})
        # Rows may leave a prompt less than all of a step, and a step decodes only before the next prompt.
        count = 3 * len(chunks) * self.rounds
        seats = (one for one in MIXED_ROWS if one < self.sizes.seats)
        for rows in (one for one in seats if self.has_room(one, MIXED_CONTEXT, count)):
            self.begin(rows, MIXED_CONTEXT, count)
            for tokens in chunks:
                first = dict[tuple[int, float], StepWork]()
                for work, seconds in self.beside_rows(tokens):
                    yield first.setdefault((work.tokens, work.prompt_read), work), seconds
            self.end()

    def beside_rows(self, tokens: int) -> Iterator[tuple[StepWork, float]]:
        """Yield the steps of prompts of so many tokens, each behind the end of the one before."""
        for _ in range(self.rounds):
            self.add(tokens, 1)
            steps = [self.step()]
            while steps[-1][0].tokens or not any(work.tokens for work, _ in steps):
                steps.append(self.step())
            yield from (one for one in steps if one[0].tokens)

    def has_room(self, rows: int, context: int, steps: int) -> bool:
        length = context + self.answer(rows, context, steps)
        blocks = rows * -(-length // self.sizes.block_tokens)
        fits = length <= self.longest and blocks < self.sizes.blocks - 2
        return fits and (rows * context <= MOST_CONTEXT or context == CONTEXTS[0])

    def begin(self, rows: int, context: int, steps: int) -> None:
        """Have so many sequences decode, each behind a prompt of its own, for so many steps at least."""
        for _ in range(rows):
            self.add(context, self.answer(rows, context, steps))
        while self.step()[0].tokens:
            continue

    def answer(self, rows: int, context: int, steps: int) -> int:
        """Return as many tokens as let the first sequences decode until the last have begun, and in these steps."""
        return 2 * steps + rows * context // LEAST_CHUNK

    def add(self, tokens: int, answer: int) -> None:
        self.made += 1
        prompt = [self.chance.randrange(self.vocabulary // 8, self.vocabulary // 2) for _ in range(tokens)]
        params = SamplingParams(max_tokens=answer, seed=1, temperature=0.0, ignore_eos=True)
        self.engine.add(Sequence(f"profile {self.made}", prompt, params, frozenset()))

    def step(self) -> tuple[StepWork, float]:
        """Make a step; return its work, and its seconds."""
        self.watched.work.clear()
        begun = self.clock()
        self.engine.step()
        seconds = self.clock() - begun
        return self.watched.work[-1] if self.watched.work else StepWork(0, 0, 0, 0), seconds

    def end(self) -> None:
        for name in list(self.engine.sequences):
            self.engine.end(name, FinishReason.ABORTED)


def point(work: StepWork, seconds: float) -> tuple[float, ...]:
    return float(work.rows), work.read, float(work.tokens), work.prompt_read, round(seconds * 1e3, 4)


def measure_pulls(machine: WorkerResources) -> Points:
    """Measure pulls from the worker's pool into another one like it, through shared memory."""
    most = min(PULLED_BLOCKS[-1], machine.storage.num_blocks - 2)
    target, ended = KVStorage(machine.layout, most + 2, machine.storage.device), threading.Event()
    owner, reader = ShmConnector(machine.storage, lambda: None), ShmConnector(target, ended.set)
    try:
        reader.attach("owner", owner.register())
        sizes = [one for one in PULLED_BLOCKS if one <= most]
        found = {one: [pull_seconds(reader, ended, one) for _ in range(PULLS)] for one in sizes}
        return tuple((float(one), 1e3 * median(seconds)) for one, seconds in found.items())
    finally:
        reader.close()
        owner.close()


def pull_seconds(reader: ShmConnector, ended: threading.Event, blocks: int) -> float:
    pairs = [(1 + one, 1 + one) for one in range(blocks)]
    ended.clear()
    begun = time.perf_counter()
    reader.pull(Pull("owner", pairs, 0))
    ended.wait(PULL_WITHIN)
    seconds, done = time.perf_counter() - begun, reader.poll()
    assert done and done[0].end.error is None, "nobody lets go of these blocks"
    return seconds


def measure_disk(config: WorkerConfig, machine: WorkerResources) -> DiskTimes:
    """Measure a tier on the disk of this worker's, in a folder of its own, which is removed. Raises ModelError."""
    try:
        return measure_tier(config, machine)
    except OSError as error:
        reason = error.strerror or error
        raise ModelError(f"the disk of --kv-tier in {config.kv_tier_disk} cannot be measured: {reason}") from None


def measure_tier(config: WorkerConfig, machine: WorkerResources) -> DiskTimes:
    size, storage = machine.layout.block_bytes, machine.storage
    count = max(1, min(DISK_BLOCKS, DISK_BYTES // size))
    room = min(count * (slot_bytes_of(size) + RECORD_BYTES), config.kv_tier_disk_size)
    name = f"profile-{os.getpid()}"
    tier = DiskTier(str(config.kv_tier_disk), name, room, size, f"{name} {time.time_ns()}")
    try:
        if not tier.capacity:
            raise OSError(f"a block takes {size} bytes, which the tier has not")
        passes = [seconds_of_full(tier, storage) for _ in range(PASSES)]
        write, read = (round(1e3 * median(some), 4) for some in zip(*passes, strict=True))
        return DiskTimes(write, read, round(1e3 * seconds_of_block(tier, storage), 4))
    finally:
        tier.close()
        shutil.rmtree(tier.path, ignore_errors=True)


def measure_draft(name: str, config: WorkerConfig, machine: WorkerResources, rounds: int) -> DraftTimes:
    """Measure the steps of the model of this name that guesses in this worker. Raises ModelError for one that is no
    model of its own."""
    drafter = machine.scheduler.drafts.drafter
    if not isinstance(drafter, ModelDrafter) or type(drafter.model) is not DraftModel:
        raise ModelError("a profile has no times of the layer that --speculative-model names: leave it out")
    model, policy = drafter.model, drafter.policy
    assert isinstance(policy, AdaptivePolicy)
    model.clock = clock_of(config)
    guesses, reads = TypicalTimes[tuple[float, ...]](), TypicalTimes[tuple[float, ...]]()
    wanted = [
        (rows, context) for rows, context in product(ROWS, GUESSED_BEHIND) if has_room(model, rows, context, rounds)
    ]
    texts = [rows for rows in READ_ROWS if has_room(model, 1, rows, rounds)]
    for _ in range(PASSES):
        guesses.add(
            ((float(rows), float(rows * context)), seconds)
            for rows, context in wanted
            for seconds in guess(model, rows, context, rounds)
        )
        reads.add(((float(rows),), read(model, rows)) for rows in texts for _ in range(rounds))
    path = Path(str(config.speculative_model))
    size, ratio = model.memory.layout.block_bytes, round(policy.ratio, 4)
    return DraftTimes(name, size, bytes_of(path), ratio, points(guesses), points(reads))


def has_room(model: DraftModel, rows: int, context: int, rounds: int) -> bool:
    """Return whether so many sequences can be guessed for so often behind a context."""
    length = context + 1 + rounds
    blocks = rows * -(-length // model.memory.layout.block_size)
    return rows * context <= MOST_CONTEXT and length < model.shape.max_model_len and blocks < model.pool.available


def points(times: TypicalTimes[tuple[float, ...]]) -> Points:
    return tuple((*sizes, round(1e3 * seconds, 4)) for sizes, seconds in sorted(times.seconds().items()))


def guess(model: DraftModel, rows: int, context: int, rounds: int) -> list[float]:
    """Return the seconds of steps that guess for so many sequences behind such a context. The rounds are nearly
    alike."""
    some = [followed(model, number, context) for number in range(rows)]
    model.runs.clear()
    model.propose([(one, rounds) for one in some])
    for one in some:
        model.forget(one)
    return [seconds for made, seconds in taken(model) if made == rows]


def read(model: DraftModel, rows: int) -> float:
    """Return the seconds of a step that reads a text of so many rows, from none of which anything is drawn."""
    model.forget(followed(model, 0, rows))
    ((_, seconds),) = taken(model)
    return seconds


def taken(model: DraftModel) -> list[tuple[int, float]]:
    """Take the rows and seconds of the steps that were made."""
    runs, model.runs = model.runs, []
    return runs


def followed(model: DraftModel, number: int, context: int) -> Sequence:
    """Have the model read so many tokens of a prompt, of which its next guess needs one more."""
    chance, params = random.Random(number), SamplingParams(max_tokens=MOST_GUESSED, seed=1, temperature=0.0)
    prompt = [chance.randrange(model.known_ids // 8, model.known_ids // 2) for _ in range(context + 1)]
    sequence = Sequence(f"guessed {number}", prompt, params, frozenset())
    model.start(sequence, len(prompt))
    model.read(sequence, context)
    return sequence


def sizes_of(config: WorkerConfig, machine: WorkerResources, weight_bytes: int) -> WorkerSizes:
    size = config.step_size
    return WorkerSizes(
        machine.config.max_model_len, machine.layout.block_size, machine.layout.block_bytes,
        machine.storage.num_blocks, weight_bytes, size.seats, size.tokens, interleaved(config) or 0,
    )  # fmt: skip


def measured_config(values: dict[str, Any], lent_cores: Path | None = None) -> WorkerConfig:
    """Return the configuration of a rank of a worker that is measured, from that of one that would serve. It borrows
    what is lent in a file of its own. Raises ModelError."""
    config = worker_config(values)
    cache = Path(str(config.cache_dir))
    path = resolve_model(config.model, cache)
    if (draft := config.speculative_model) not in (None, MTP):
        config = replace(config, speculative_model=str(resolve_model(str(draft), cache)))
    # Each prompt is computed, and nobody else is here to outlive.
    lent = None if lent_cores is None else str(lent_cores)
    return replace(config, model=str(path), prefix_caching=False, lent_cores=lent, keep_kv=False)


@contextmanager
def machine_of(config: WorkerConfig) -> Iterator[tuple[WorkerResources, WorkerSizes]]:
    """Load the model as the worker of this configuration would, whose other ranks have begun. The process keeps the
    worker's cores. Raises ModelError."""
    if config.device == CPU:
        os.sched_setaffinity(0, config.cores)
    machine = assemble(config, NoReports())
    try:
        yield machine, sizes_of(config, machine, bytes_of(config.model_path))
    finally:
        machine.driver.close()


def clock_of(config: WorkerConfig) -> Callable[[], float]:
    """Return the clock of a worker's steps. With one core its processor time: what other programs take of that is not
    the model's. With several threads or ranks, or a GPU, only the time that passes tells."""
    is_alone = config.device == CPU and len(config.cores) == 1 and config.ranks == 1
    return time.process_time if is_alone else time.perf_counter


def about(config: WorkerConfig, machine: WorkerResources) -> ProfiledModel:
    device = torch.cuda.get_device_name(config.device) if config.device != CPU else processor_name()
    return ProfiledModel(
        config.served_model_name, machine.fingerprint, str(config.version), device, config.device, len(config.cores),
        machine.kernels, machine.dtype, machine.kv_cache_dtype, config.ranks,
    )  # fmt: skip


def bytes_of(model: Path) -> int:
    """Return the bytes of a model's weights, as its files have them."""
    files = [model] if model.is_file() else [one for one in model.iterdir() if one.suffix == ".safetensors"]
    return sum(one.stat().st_size for one in files)
