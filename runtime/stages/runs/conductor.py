# SPDX-License-Identifier: Apache-2.0
"""The conductor of runs: it opens a request for each stage, and joins them (docs/decisions/051).

Faults of a stage are its own request's, and the dispatcher's. The conductor adds three things: consumers hear of the
workers that make their items, items that are lost are made again, and all stages end together.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from pontil.runtime.accounting.book import stated_count
from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError, Unavailable
from pontil.runtime.foundation.staged_model import group_of
from pontil.runtime.proxy.admission.in_flight import InFlight
from pontil.runtime.proxy.dispatch.dispatcher import Dispatcher
from pontil.runtime.proxy.metrics.all_series import FAILED, Metrics
from pontil.runtime.proxy.requests.answer import Finished
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper
from pontil.runtime.proxy.requests.log_fields import about
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.ticket import NO_KEY
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import GraphNode
from pontil.runtime.stages.graph.partition import GraphPartition
from pontil.runtime.stages.runs.run import BYTES_PER_SAMPLE, Run, StageRun, producer_of
from pontil.runtime.wire.messages import Inputs, PassDone, Release, Starved, Unread

LOG = logging.getLogger("pontil.proxy")
# Reports that a registered worker does not give its items, before this is believed: it may only have been slow.
MOST_REFUSALS = 2
# A stage that takes items makes about as many rows of them as the prompt has tokens, and at most so many more.
ROWS_BESIDE = 16
# The most tokens that a later stage makes for a self-test.
TRIAL_TOKENS = 16


class Conductor:
    """The conductor of one proxy's `runs`, by id: their `RunKeeper`."""

    def __init__(
        self,
        config: ProxyConfig,
        incarnation: str,
        dispatcher: Dispatcher,
        in_flight: InFlight,
        books: Bookkeeper,
        metrics: Metrics,
        clock: Callable[[], float],
    ) -> None:
        self.config, self.incarnation, self.dispatcher, self.in_flight = config, incarnation, dispatcher, in_flight
        self.books, self.metrics, self.clock = books, metrics, clock
        self.runs: dict[str, Run] = {}

    def begin(self, first: Request, work: StageRun) -> Run:
        run = Run(first, work, self.dispatcher.registry.workers)
        self.runs[run.id] = run
        self.show_running()
        return run

    def show_running(self) -> None:
        self.metrics.runs.running.set(sum(not run.first.trial for run in self.runs.values()))

    def launched(self, request: Request, run: Run) -> None:
        """Open the other stages once the first is dispatched. Later tell the consumers of a stage whose attempt is
        another one who makes their items now."""
        # The first attempt may have reached no worker.
        unopened = [node for node in run.later if node.name not in run.requests] if request is run.first else []
        for node in unopened:
            if not run.over:
                self.open(run, node)
        if not unopened and request.work.stage is not None:
            self.tell_consumers(run, request.work.stage)

    def open(self, run: Run, node: GraphNode) -> None:
        """Open the request of a stage. It begins at once: a run is dispatched when all of its stages have room."""
        first = run.first
        sampling = dict(node.sampling)
        if first.params.greedy:
            sampling["temperature"] = 0.0
        prompt = first.prompt if node.generates else []
        budget = self.budget(run, node, len(prompt)) if node.generates else 0
        budget = min(budget, TRIAL_TOKENS) if first.trial else budget
        params = SamplingParams(max_tokens=budget, seed=first.params.seed, **sampling)
        given = run.given.get(node.name)
        work = StageRun(prompt, params, run.graph, node, self, run=run, data=given, options=run.options)
        request = self.in_flight.add(f"{run.id}.{node.name}", first.ticket, work, trial=first.trial)
        if (whole := first.mailbox.whole) is not None:
            whole.add()
        request.mailbox.whole = whole
        run.requests[node.name] = request
        if not request.trial:
            self.books.admit(request)
        self.dispatcher.enlist(request)

    def budget(self, run: Run, node: GraphNode, prompt: int) -> int:
        """Return the most tokens of a stage: what its workers can hold beside its rows."""
        context = self.dispatcher.registry.of(group_of(run.graph, node.name)).known_context or 0
        return max(1, min(node.max_tokens or context, context - prompt - ROWS_BESIDE))

    def tell_consumers(self, run: Run, stage: str) -> None:
        """Tell the workers that take a stage's items where they come from now."""
        for edge, consumer in list(run.consumers(stage)):
            for worker in consumer.attempts.phases:
                self.tell(run, edge, consumer, worker)

    def tell(self, run: Run, edge: str, consumer: Request, worker: str) -> None:
        producers = [list(producer) for producer in run.producers(edge)]
        message = Inputs(self.incarnation, worker, consumer.id, consumer.attempts.number, edge, producers)
        self.dispatcher.cancels.post(worker, message)

    def on_starved(self, message: Starved) -> None:
        """Have the items made again that a consumer misses: by the next attempt of the stage that makes them, or, where
        its request has ended, by a replay. A worker that is registered is named to the consumer once more before."""
        request = self.in_flight.requests.get(message.request_id)
        run = None if request is None else run_of(request)
        if request is None or run is None or not request.attempts.expects(message.sender, message.attempt):
            self.metrics.dropped.labels("stale").inc()
            return
        if message.edge not in run.inputs(str(request.work.stage)):
            self.metrics.drop_malformed(message, "it does not fit its graph")
            return
        self.metrics.runs.starved.inc()
        stage, lost = producer_of(message.edge), message.lost
        if lost not in run.latest(stage).attempts.phases:
            return  # A later attempt makes all items, and the consumers heard of it, or will.
        refusals = run.refusals[message.edge, lost] = run.refusals.get((message.edge, lost), 0) + 1
        if lost in run.workers and refusals < MOST_REFUSALS:
            self.tell(run, message.edge, request, message.sender)
        else:
            run.refusals.clear()
            self.make_again(run, stage)

    def make_again(self, run: Run, stage: str) -> None:
        latest = run.latest(stage)
        if latest.mailbox.end is None:
            self.dispatcher.retry(latest, f"items of {stage} were lost with a worker", FAILED)
        else:
            self.replay(run, stage)

    def replay(self, run: Run, stage: str) -> None:
        """Compute a stage whose request has ended again, for its items alone. Nobody is billed."""
        number = run.replayed[stage] = run.replayed.get(stage, 0) + 1
        request = run.requests[stage]
        if number > self.config.max_attempts:
            self.end(run, Unavailable(f"the items of {stage} were lost {number} times: try again"), "error")
            return
        done = request.work
        assert isinstance(done, StageRun), "every request of a run is one of a stage"
        answer = request.answers[0].ids
        params = replace(request.params, max_tokens=0, min_tokens=0, logprobs=None, prompt_logprobs=None)
        work = StageRun(
            request.prompt + answer[:-1], params, run.graph, done.node, self, run=run, data=done.data,
            options=done.options, frames=done.frames, answer=tuple(answer), positions=len(request.prompt),
        )  # fmt: skip
        ticket = replace(request.ticket, caller=NO_KEY, received=None)
        again = self.in_flight.add(f"{run.id}.{stage}.{number}", ticket, work)
        again.trial = True
        run.replays[stage] = again
        for source in dict.fromkeys(map(producer_of, run.inputs(stage))):
            # An attempt that began when this stage had ended makes no items for it.
            if (producer := run.latest(source)).mailbox.end is None:
                self.dispatcher.retry(producer, f"{stage} is computed again", FAILED)
        self.metrics.runs.replays.inc()
        LOG.info("%s is computed again for its items", stage, extra=about(run.first))
        self.dispatcher.enlist(again)

    def on_pass_done(self, message: PassDone) -> None:
        """Merge a report of passes (E5). A stage that advances restarts the wait for its run."""
        request = self.in_flight.requests.get(message.request_id)
        run = None if request is None else run_of(request)
        if request is None or run is None or not request.attempts.expects(message.sender, message.attempt):
            return  # The report of the last pass may come after the frame that ended the request.
        name, graph = str(request.work.stage), run.graph
        if message.node != name or not fits(message, graph.graph.partition(name)):
            self.metrics.drop_malformed(message, "it does not fit its graph")
        elif run.progress[name].take(message, graph):
            request.times.waits_since = self.clock()

    def ended(self, request: Request, run: Run) -> None:
        """Take note of the end of a stage's request. The first that fails ends the run, and so does one that another
        proxy goes on with."""
        if run.over:
            return
        end = request.mailbox.end
        if end is None:
            self.cancel(run)
        elif isinstance(end, PontilError):
            self.end(run, end, "error")
        elif run.is_complete:
            self.close(run, Finished(run.first.reasons[0], run.usage, run.first.attempts.route_name))
        else:
            self.tell_producers(run, str(request.work.stage))

    def tell_producers(self, run: Run, stage: str) -> None:
        """Tell the workers that make a stage's items that it has ended. Its own worker tells them too, unless it dies
        as it ends: nobody would then make room for more (E13)."""
        for edge in run.inputs(stage):
            producer = run.latest(producer_of(edge))
            for worker in producer.attempts.phases if producer.mailbox.end is None else ():
                self.dispatcher.cancels.post(worker, Unread(self.incarnation, worker, run.id, edge))

    def cancel(self, run: Run) -> None:
        """End a run whose client has left. Does nothing for one that has ended."""
        self.end(run, Unavailable("the request was cancelled"), "cancelled")

    def end(self, run: Run, error: PontilError, label: str) -> None:
        """End every stage of a run with one error."""
        if not run.over:
            run.over = True
            for request in run.open:
                self.in_flight.end(request, error, label)
            self.close(run, error)

    def close(self, run: Run, end: Finished | PontilError) -> None:
        """End a run whose stages have ended, and let its workers forget their items."""
        run.over = True
        for replay in run.open:
            self.in_flight.cancel(replay)
        self.runs.pop(run.id, None)
        self.show_running()
        if not run.first.trial:
            self.metrics.runs.audio.inc(run.audio.size / BYTES_PER_SAMPLE / run.graph.sample_rate)
        for worker in [worker for worker in run.served if worker in run.workers]:
            self.dispatcher.cancels.post(worker, Release(self.incarnation, worker, run.id))
        run.audio.close(end)


def fits(message: PassDone, partition: GraphPartition) -> bool:
    """Return whether a pass can have run under the walk that its report names: the worker that ran it moved the
    partition by the same declaration (E1)."""
    passes = stated_count(message.passes)
    if partition.is_driven or not passes:
        return passes is not None and partition.walk(message.walk) is not None
    return message.walk == partition.walk_of_pass(passes - 1)


def run_of(request: Request) -> Run | None:
    """Return the run that a request is a part of."""
    return request.work.run if isinstance(request.work, StageRun) else None
