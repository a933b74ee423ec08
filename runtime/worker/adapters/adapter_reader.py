# SPDX-License-Identifier: Apache-2.0
"""The reading of adapters: when a worker starts, and in a thread while it runs, so that no step waits for one."""

import queue
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from pontil.gpu_ops.collectives.communicator import Communicator
from pontil.gpu_ops.parameters.adapters import MadeAdapter
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.engine.runner.memory_errors import is_out_of_memory
from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.errors import AdapterError, ModelError
from pontil.runtime.loaders.hf.adapter import PeftAdapter, read_adapter
from pontil.runtime.models.adapters import ModelAdapters
from pontil.runtime.threads import JobThread, ThreadFailures


@dataclass(frozen=True, slots=True)
class AdapterJob:
    """An adapter that is to be read: the number of this reading, the digest that its files are to have, and their
    directory."""

    number: int
    digest: str
    directory: str


@dataclass(frozen=True, slots=True)
class AdapterRead:
    """The outcome of a reading: the adapter, laid out for the kernels, in so many bytes; or the reason why there is
    none."""

    job: AdapterJob
    made: MadeAdapter | None
    nbytes: int = 0
    reason: str = ""


class AdapterReader:
    """Reads this rank's parts of adapters, one after the other. `wake` is called, from another thread, when there is
    something to take."""

    def __init__(self, model: ModelAdapters, wake: Callable[[], None], failures: ThreadFailures | None = None) -> None:
        self.model, self.wake = model, wake
        self.found: queue.SimpleQueue[AdapterRead] = queue.SimpleQueue()
        self.thread: JobThread[AdapterJob] = JobThread(self.read, "adapters", failures, self.mend)

    def put(self, job: AdapterJob) -> None:
        if not self.thread.started:
            self.thread.start()
        self.thread.put(job)

    def read(self, job: AdapterJob) -> None:
        if self.thread.closing.is_set():
            return
        try:
            found, made = make_adapter(self.model, job.directory, f"the adapter in {job.directory}")
            if found.digest == job.digest:
                self.tell(AdapterRead(job, made, made.nbytes))
            else:
                reason = f"{job.directory} has other files than those that were loaded"
                self.tell(AdapterRead(job, None, reason=reason))
        except ModelError as error:
            self.tell(AdapterRead(job, None, reason=str(error)))

    def mend(self, job: AdapterJob, error: BaseException) -> None:
        self.tell(AdapterRead(job, None, reason=f"{job.directory} could not be read ({error!r:.200})"))

    def tell(self, read: AdapterRead) -> None:
        self.found.put(read)
        self.wake()

    def take(self) -> list[AdapterRead]:
        """Return what was read since the last call."""
        return [self.found.get() for _ in range(self.found.qsize())]

    def close(self) -> None:
        self.thread.close()


def make_adapter(adapters: ModelAdapters, directory: str, source: str) -> tuple[PeftAdapter, MadeAdapter]:
    """Read an adapter; return it, and how its model computes it. Raises AdapterError."""
    adapter = read_adapter(Path(directory))
    own = adapter.own(adapters.shapes, source, adapters.config)
    try:
        return adapter, adapters.made(own)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise AdapterError(
            f"{source} does not fit the memory beside what is there: give --adapter-memory, for which room is kept, or "
            "lower --gpu-memory-share"
        ) from error


def put_adapters(adapters: ModelAdapters, config: WorkerConfig, ranks: Communicator) -> KnownAdapters:
    """Read a launch's adapters, as all ranks do, and give each to a model under its number. Of those that have no room
    together the last ones are in memory. Numbers and memory are the same on all ranks. Raises AdapterError."""
    known = KnownAdapters(config.adapter_memory)
    for name, directory in config.adapter_paths.items():
        source = f"the adapter {name}"
        found, made = make_adapter(adapters, directory, source)
        digest = found.digest
        nbytes = bytes_of_all(ranks, digest, made.nbytes, source)
        known.learn(name, digest, directory).invocation = found.invocation
        for one in known.room_for(source, nbytes, ()) or ():
            adapters.remove(one.used.number)
            one.is_loaded = False
        made.put(known.by_digest[digest].used.number)
        known.load(digest, nbytes)
    known.of_launch = frozenset(known.by_digest)
    return known


def bytes_of_all(ranks: Communicator, digest: str, nbytes: int, source: str) -> int:
    """Return the memory of all ranks' parts of an adapter. Raises AdapterError if one has read other files."""
    words = torch.frombuffer(bytearray.fromhex(digest), dtype=torch.int64)
    told = ranks.gather_columns(torch.cat([words, torch.tensor([nbytes])]).view(1, -1)).view(ranks.size, -1)
    if not told[:, :-1].eq(words).all():
        raise AdapterError(f"{source} has other files at other ranks of this worker: give all of them the same ones")
    return int(told[:, -1].sum())
