# SPDX-License-Identifier: Apache-2.0
"""Reports of a step's outputs to the proxy and to the prefill side."""

from collections.abc import Callable, Sequence

from pontil.runtime.engine.engine import Engine, Output
from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT
from pontil.runtime.engine.sequences.sequence import FinishReason
from pontil.runtime.wire.messages import Tokens
from pontil.runtime.worker.generate.prefill import PrefillSide
from pontil.runtime.worker.links.proxy_link import Failure
from pontil.runtime.worker.links.proxy_links import ProxyLinks
from pontil.runtime.worker.process.counters import WorkerCounters
from pontil.runtime.worker.process.request_table import RequestTable
from pontil.runtime.worker.process.worker_request import WorkerRequest, tokens_frame


class OutputProcessor:
    """Reports outputs. `cancel` ends a request in the engine and in its transfers."""

    def __init__(
        self,
        requests: RequestTable,
        link: ProxyLinks,
        engine: Engine,
        prefill: PrefillSide,
        engine_counters: WorkerCounters,
        cancel: Callable[[WorkerRequest, float, Failure], None],
    ) -> None:
        self.requests, self.link, self.engine = requests, link, engine
        self.prefill, self.engine_counters, self.cancel = prefill, engine_counters, cancel

    def process(self, outputs: Sequence[Output], now: float) -> None:
        frames = [self.frame_of(output, now) for output in outputs]
        self.link.send_tokens([frame for frame in frames if frame is not None])
        for output in outputs:
            if output.failure is not None:
                self.break_off(output.sequence.id, output.failure, now)
                if output.sequence.hands_over:
                    # Its transfer has ended, here or with an earlier choice: no peer takes these blocks for its own.
                    self.engine.scheduler.memory.give_back(output.sequence)
        for output in outputs:
            self.conclude(output)
        self.prefill.announce(now)

    def frame_of(self, output: Output, now: float) -> Tokens | None:
        """Return the message to the proxy about accepted tokens. The prefill side is told of choices that ended
        there."""
        request = self.requests.request.get(output.sequence.id)
        if request is None:
            self.engine_counters.drop()
            return None
        link = self.link.of(request.proxy)
        if link is not None:
            link.told.tell(output.count, output.sequence.history.prompt_computed if output.opens else 0)
        request.times.token(now)
        if output.finish is not None:
            self.requests.shares.choice_ended(request)
        if output.finish not in (None, FinishReason.ERROR) and request.hands_over:
            self.prefill.ended(output, now)
        return tokens_frame(self.requests.incarnation, request, output)

    def break_off(self, key: str, reason: str, now: float) -> None:
        """End a request one of whose choices cannot continue because of its own parameters, or for lack of memory."""
        request, failure = self.requests.get(key), Failure(reason, 503 if reason == MEMORY_RAN_OUT else 400)
        if request is None:
            return
        if request.hands_over:
            self.requests.end(key, failure)
            self.prefill.break_off(request, now)
        else:
            self.cancel(request, now, failure)

    def conclude(self, output: Output) -> None:
        """End a request once all its choices ended; each of them was delivered. The prefill side ends its own
        requests."""
        request = self.requests.request.get(output.sequence.id)
        if request is not None and request.key not in self.engine.sequences and not request.hands_over:
            self.requests.end(request.key)
