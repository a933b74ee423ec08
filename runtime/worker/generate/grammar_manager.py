# SPDX-License-Identifier: Apache-2.0
"""The grammars of a worker, compiled in a thread, so that no step waits for one, and cached up to a limit.

A request waits here for its grammar before it goes to the engine or to a transfer.
"""

import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from pontil.runtime.errors import RequestError
from pontil.runtime.grammar.grammar import COMPILE_STACK_BYTES, Grammar, GrammarCompiler
from pontil.runtime.threads import JobThread, ThreadFailures
from pontil.runtime.worker.process.worker_request import WorkerRequest

MOST_KEPT = 64
COMPILE_TIMEOUT = 10.0
# The proxy refuses grammars that need a quarter of this, whatever the default stack size of threads here.
STACK_BYTES = 4 * COMPILE_STACK_BYTES


@dataclass(slots=True)
class PendingGrammar:
    """A request that waits for its grammar."""

    request: WorkerRequest
    deadline: float


class GrammarManager:
    """Compiled and pending grammars. `submit` a request; `poll` returns those that may start, in the order in which
    their grammars were compiled. Requests that fail are put into `failed` with the reason and an HTTP status, and the
    worker tells the proxy. `wake` is called, from another thread, when there is something to poll."""

    def __init__(
        self, compiler: GrammarCompiler, wake: Callable[[], None], failures: ThreadFailures | None = None
    ) -> None:
        self.compiler, self.wake = compiler, wake
        self.kept: OrderedDict[str, Grammar] = OrderedDict()
        self.waiting: dict[str, list[PendingGrammar]] = {}
        self.failed: list[tuple[WorkerRequest, str, int]] = []
        self.made: queue.SimpleQueue[tuple[str, Grammar | str]] = queue.SimpleQueue()
        self.wanted: JobThread[str] = JobThread(self.carry_out, "grammars", failures, self.mend)

    def submit(self, request: WorkerRequest, now: float) -> bool:
        """Take a request. Return whether it may start at once."""
        text = request.sequence.params.grammar
        if text is None:
            return True
        grammar = self.kept.get(text)
        if grammar is not None:
            self.kept.move_to_end(text)
            give(request, grammar)
            return True
        if text not in self.waiting:
            self.compile(text)
        self.waiting.setdefault(text, []).append(PendingGrammar(request, now + COMPILE_TIMEOUT))
        return False

    def __len__(self) -> int:
        """Return the number of requests that wait."""
        return sum(map(len, self.waiting.values()))

    def compile(self, text: str) -> None:
        if not self.wanted.started:
            self.start_with_stack()
        self.wanted.put(text)

    def start_with_stack(self) -> None:
        usual = threading.stack_size(STACK_BYTES)
        try:
            self.wanted.start()
        finally:
            threading.stack_size(usual)

    def carry_out(self, text: str) -> None:
        if self.wanted.closing.is_set():
            return
        try:
            self.made.put((text, self.compiler.compile(text)))
        except RequestError as error:
            self.made.put((text, str(error)))
        self.wake()

    def mend(self, text: str, error: BaseException) -> None:
        self.made.put((text, f"the grammar cannot be used: the library for grammars failed at it ({error!r:.200})"))
        self.wake()

    def cancel(self, request: WorkerRequest) -> bool:
        """Stop waiting for a request's grammar. Return whether the request was waiting here."""
        for some in self.waiting.values():
            for one in some:
                if one.request is request:
                    some.remove(one)
                    return True
        return False

    def poll(self, now: float) -> list[WorkerRequest]:
        """Return the requests whose grammars are compiled. Those that waited too long fail; a grammar that is compiled
        too late is cached nevertheless."""
        ready: list[WorkerRequest] = []
        if not self.waiting:
            return ready
        while not self.made.empty():
            text, made = self.made.get()
            requests = [one.request for one in self.waiting.pop(text)]
            if isinstance(made, str):
                self.failed += [(request, made, 400) for request in requests]
            else:
                self.keep(text, made)
                for request in requests:
                    give(request, made)
                ready += requests
        for some in self.waiting.values():
            for one in [one for one in some if now >= one.deadline]:
                some.remove(one)
                self.failed.append((one.request, f"the grammar was not compiled within {COMPILE_TIMEOUT:.0f} s", 503))
        return ready

    def keep(self, text: str, grammar: Grammar) -> None:
        self.kept[text] = grammar
        if len(self.kept) > MOST_KEPT:
            self.kept.popitem(last=False)

    def close(self) -> None:
        self.wanted.close()


def give(request: WorkerRequest, grammar: Grammar) -> None:
    params = request.sequence.params
    # The end of a text may need any token.
    budget = None if params.bad_token_ids or params.allowed_token_ids else params.max_tokens
    request.sequence.rules.make_guide = partial(grammar.guide, request.ends, budget)
