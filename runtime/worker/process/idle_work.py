# SPDX-License-Identifier: Apache-2.0
"""Use of a worker's cores and time while no request needs them."""

import math

from pontil.gpu_ops.kernels.lent_cores import LentCores
from pontil.runtime.cache.block_recorder import BlockRecorder
from pontil.runtime.engine.engine import Engine
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.worker.start.prefault import IdleReturn, Prefault

# Seconds without work after which a worker starts idle work: the next request is not on its way yet.
QUIET = 1.0
# Seconds without work after which it makes what takes it half a second: others may still be starting.
SETTLED = 5.0
# Seconds after which a worker whose core is borrowed checks again whether it may do idle work.
BORROWED_PAUSE = 0.005
# Seconds for which blocks are recorded at a time: a message does not wait for long.
RECORDING = 0.001


class IdleWork:
    """The idle work of a worker, as far as it has any. Without requests it lends its cores. While they are not borrowed
    it records the blocks of a pool that outlives it, maps memory ahead, and after a while puts finished answers into
    the prefix cache, and prepares for grammars: this is free now, but would delay the request that needs it. Later it
    gives memory back.

    Not thread-safe: the engine's thread owns it.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        prefault: Prefault | None = None,
        lent_cores: LentCores | None = None,
        recorder: BlockRecorder | None = None,
        idle_return: IdleReturn | None = None,
        grammars: GrammarCompiler | None = None,
    ) -> None:
        self.engine, self.prefault, self.lent_cores, self.recorder = engine, prefault, lent_cores, recorder
        self.idle_return, self.grammars = idle_return, grammars
        self.busy_at = 0.0
        # Since when there may be requests: a start does not wait for what it would prepare.
        self.ready_at = math.inf

    def begin(self) -> None:
        if self.lent_cores is not None:
            self.lent_cores.lend()

    def end(self) -> None:
        """Take the cores back: work begins."""
        if self.lent_cores is not None:
            self.lent_cores.take()

    def after_step(self, began: float, now: float) -> None:
        """Record some blocks, in a small share of the time that the step took."""
        self.busy_at = now
        if self.idle_return is not None:
            self.idle_return.interrupt()
        if self.recorder is not None and self.recorder.is_due:
            self.recorder.after_step(now - began)

    @property
    def is_recording(self) -> bool:
        """Return whether there are blocks to record."""
        return self.recorder is not None and self.recorder.is_due

    @property
    def is_mapping(self) -> bool:
        """Return whether there is memory to map."""
        return self.prefault is not None and self.prefault.is_due

    @property
    def has_spare_work(self) -> bool:
        """Return whether there are answers to keep."""
        return self.engine is not None and self.engine.scheduler.has_spare_work

    @property
    def unprepared(self) -> GrammarCompiler | None:
        """Return the compiler of grammars if the first of them would wait for its tables."""
        grammars = self.grammars if self.ready_at < math.inf else None
        return None if grammars is None or grammars.is_prepared else grammars

    @property
    def settled_at(self) -> float:
        """Return when there has been no work for long, since the start too."""
        return max(self.busy_at, self.ready_at) + SETTLED

    @property
    def giving_back(self) -> float | None:
        """Return when there is memory to give back, if ever."""
        return None if self.idle_return is None else self.idle_return.due(self.busy_at)

    @property
    def is_borrowed(self) -> bool:
        return self.lent_cores is not None and self.lent_cores.is_borrowed

    def patience(self, now: float, most: float) -> float:
        """Return how long the worker may sleep before there is idle work, at most `most`."""
        if self.is_recording or self.is_mapping:
            due = now
        elif self.has_spare_work:
            due = self.busy_at + QUIET
        elif self.unprepared is not None:
            due = self.settled_at
        elif (giving := self.giving_back) is not None:
            due = giving
        else:
            return most
        return min(most, max(due - now, BORROWED_PAUSE if self.is_borrowed else 0.0))

    def spend(self, now: float) -> None:
        """Do a small piece of idle work, short enough that an arriving message does not wait for long."""
        if self.is_borrowed:
            return
        if self.recorder is not None and self.recorder.is_due:
            self.recorder.rest(RECORDING)
        elif self.prefault is not None and self.prefault.is_due:
            self.prefault.advance()
        elif self.engine is not None and self.engine.scheduler.has_spare_work and now - self.busy_at >= QUIET:
            # This is a step like any other: take the core back for it, so that no peer borrows it meanwhile; the next
            # turn lends it again.
            self.end()
            self.engine.keep_answers()
        elif (grammars := self.unprepared) is not None and now >= self.settled_at:
            # The only piece that is not small: a message that arrives meanwhile waits for it.
            grammars.prepare()
        elif self.idle_return is not None and (due := self.giving_back) is not None and now >= due:
            self.idle_return.advance(self.busy_at)
