# SPDX-License-Identifier: Apache-2.0
"""Places for real workers whose KV outlives them, in one thread with a scripted proxy."""

import os
from pathlib import Path
from typing import Any

from workers import PromptWorker, ScriptedProxy, greedy, open_worker

from pontil.runtime.config.worker_config import WorkerRole


class WorkerPlace:
    """A place for one worker after the other, which have the same files."""

    def __init__(self, proxy: ScriptedProxy, model: Path, folder: Path, name: str, role: WorkerRole) -> None:
        self.proxy, self.model, self.folder, self.name, self.role = proxy, model, folder, name, role
        self.files = [os.memfd_create(f"{name} {part}") for part in ("blocks", "records")]
        self.asked = self.starts = 0
        self.worker: PromptWorker

    def start(self, **settings: Any) -> PromptWorker:
        """Start the next worker, at an address of its own: peers have no process to see the end of."""
        kept, name = tuple(map(os.dup, self.files)), f"{self.name}-{self.starts}"
        self.starts += 1
        self.worker = open_worker(self.model, self.folder, name, self.role, kept_memory=kept, **settings)
        self.proxy.admit(self.worker)
        return self.worker

    def record(self) -> None:
        """Wait until everything is recorded."""
        recorder = self.worker.machine.recorder
        assert recorder is not None
        self.proxy.turn_until(lambda: not recorder.is_due)

    def end(self) -> None:
        """End the worker as a kill would: nothing more is recorded."""
        self.proxy.workers.remove(self.worker)
        self.worker.close()

    def ask(self, tokens: list[int], count: int = 4) -> tuple[list[int], int]:
        """Return the answer and the number of cached prompt tokens."""
        self.asked += 1
        name = f"{self.name}-{self.asked}"
        self.proxy.submit(self.worker, name, tokens, greedy(count, ignore_eos=True), salt="same")
        (answer,) = self.proxy.finish(name)
        assert not answer.failures
        return answer.ids, answer.frames[0].cached_tokens or 0

    def close(self) -> None:
        for file in self.files:
            os.close(file)
