# SPDX-License-Identifier: Apache-2.0
"""The conductor of runs: it opens a request for each stage, and joins them (docs/decisions/051).

Faults of a stage are its own request's, and the dispatcher's. The conductor adds three things: consumers hear of the
workers that make their items, items that are lost are made again, and all stages end together.
"""

import logging
from collections.abc import Callable
from dataclasses import replace

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.errors import PontilError, Unavailable
from pontil.runtime.proxy.log_fields import about
from pontil.runtime.proxy.metrics.all_series import FAILED, Metrics
from pontil.runtime.proxy.requests.bookkeeper import Bookkeeper
from pontil.runtime.proxy.requests.in_flight import InFlight
from pontil.runtime.proxy.requests.request import Request
from pontil.runtime.proxy.requests.stream import Finished
from pontil.runtime.proxy.requests.ticket import NO_KEY
from pontil.runtime.proxy.routing.dispatch import Dispatcher
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.stages.graph.catalog import GraphNode
from pontil.runtime.stages.runs.run import BYTES_PER_SAMPLE, Run, producer_of
from pontil.runtime.stages.runs.stage_task import StageTask, inputs_of
from pontil.runtime.wire.messages import Inputs, PassDone, Release, Starved

LOG = logging.getLogger("pontil.proxy")
# Reports that a registered worker does not give its items, before this is believed: it may only have been slow.
MOST_REFUSALS = 2
# A stage that takes items makes about as many rows of them as the prompt has tokens, and at most so many more.
ROWS_BESIDE = 16
# The most tokens that a later stage makes for a self-test.
TRIAL_TOKENS = 16


class Conductor:
    """The conductor of one proxy's `runs`, by id. `in_flight` and `dispatcher` call `ended` and `launched` for the
    requests of stages."""

    def __init__(
        self, config: ProxyConfig, incarnation: str, dispatcher: Dispatcher, in_flight: InFlight, books: Bookkeeper,
        metrics: Metrics, clock: Callable[[], float],
    ) -> None:  # fmt: skip
        self.config, self.incarnation, self.dispatcher, self.in_flight = config, incarnation, dispatcher, in_flight
        self.books, self.metrics, self.clock = books, metrics, clock
        self.runs: dict[str, Run] = {}
        dispatcher.launched, in_flight.ended = self.launched, self.ended

    def begin(self, run: Run) -> None:
        """Take charge of a run whose first request is admitted."""
        self.runs[run.id] = run
        self.show_running()

    def show_running(self) -> None:
        self.metrics.runs.running.set(sum(not run.first.trial for run in self.runs.values()))

    def launched(self, request: Request) -> None:
        """Open the other stages once the first is dispatched. Later tell the consumers of a stage whose attempt is
        another one who makes their items now."""
        task = request.stage
        if task is None or task.run is None:
            return
        run = task.run
        # The first attempt may have reached no worker.
        unopened = [node for node in run.later if node.name not in run.requests] if request is run.first else []
        for node in unopened:
            if not run.over:
                self.open(run, node)
        if not unopened:
            self.tell_consumers(run, task.node.name)

    def open(self, run: Run, node: GraphNode) -> None:
        """Open the request of a stage. It begins at once: a run is dispatched when all of its stages have room."""
        first = run.first
        task = StageTask(run.graph, node, run, options=run.options)
        sampling = dict(node.sampling)
        if first.params.greedy:
            sampling["temperature"] = 0.0
        prompt = first.prompt if node.generates else []
        budget = self.budget(task, len(prompt)) if node.generates else 0
        budget = min(budget, TRIAL_TOKENS) if first.trial else budget
        params = SamplingParams(max_tokens=budget, seed=first.params.seed, **sampling)
        request = self.in_flight.add(f"{run.id}.{node.name}", first.ticket, prompt, params, task)
        request.trial = first.trial
        request.recorder.is_hidden = first.trial
        request.mailbox.whole = first.mailbox.whole
        run.requests[node.name] = request
        if not request.trial:
            self.books.admit(request)
        self.dispatcher.enlist(request)

    def budget(self, task: StageTask, prompt: int) -> int:
        """Return the most tokens of a stage: what its workers can hold beside its rows."""
        context = self.dispatcher.registry.of(task.group).known_context or 0
        return max(1, min(task.node.max_tokens or context, context - prompt - ROWS_BESIDE))

    def tell_consumers(self, run: Run, stage: str) -> None:
        """Tell the workers that take a stage's items where they come from now."""
        for edge, consumer in list(run.consumers(stage)):
            for worker in consumer.phases:
                self.tell(run, edge, consumer, worker)

    def tell(self, run: Run, edge: str, consumer: Request, worker: str) -> None:
        producers = [list(producer) for producer in run.producers(edge)]
        message = Inputs(self.incarnation, worker, consumer.id, consumer.attempt, edge, producers)
        self.dispatcher.cancels.post(worker, message)

    def on_starved(self, message: Starved) -> None:
        """Have the items made again that a consumer misses: by the next attempt of the stage that makes them, or, where
        its request has ended, by a replay. A worker that is registered is named to the consumer once more before."""
        request = self.in_flight.requests.get(message.request_id)
        task = None if request is None else request.stage
        run = None if task is None else task.run
        if request is None or run is None or not request.expects(message.sender, message.attempt):
            self.metrics.dropped.labels("stale").inc()
            return
        if task is None or message.edge not in inputs_of(run.graph, task.node.name):
            self.metrics.drop_malformed(message, "it does not fit its graph")
            return
        self.metrics.runs.starved.inc()
        stage, lost = producer_of(message.edge), message.lost
        if lost not in run.latest(stage).phases:
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
        done = request.stage
        assert done is not None, "every request of a run is one of a stage"
        answer = request.answers[0].ids
        task = StageTask(
            run.graph, done.node, run, options=done.options, frames=done.frames, answer=tuple(answer),
            positions=len(request.prompt), data=done.data,
        )  # fmt: skip
        params = replace(request.params, max_tokens=0, min_tokens=0, logprobs=None, prompt_logprobs=None)
        again = self.in_flight.add(
            f"{run.id}.{stage}.{number}", replace(request.ticket, caller=NO_KEY, received=None),
            request.prompt + answer[:-1], params, task,
        )  # fmt: skip
        again.trial = True
        run.replays[stage] = again
        self.metrics.runs.replays.inc()
        LOG.info("%s is computed again for its items", stage, extra=about(run.first))
        self.dispatcher.enlist(again)

    def on_pass_done(self, message: PassDone) -> None:
        """Merge a report of passes (E5). A stage that advances restarts the wait for its run."""
        request = self.in_flight.requests.get(message.request_id)
        task = None if request is None else request.stage
        run = None if task is None else task.run
        if request is None or task is None or run is None or not request.expects(message.sender, message.attempt):
            return  # The report of the last pass may come after the frame that ended the request.
        name, graph = task.node.name, run.graph
        walks = {one.name: [walk.name for walk in one.walks] for one in graph.graph.partitions}
        if message.node != name or message.walk not in walks[name]:
            self.metrics.drop_malformed(message, "it does not fit its graph")
        elif run.progress[name].take(message, graph.edges, walks):
            request.waits_since = self.clock()

    def ended(self, request: Request) -> None:
        """Take note of the end of a stage's request. The first that fails ends the run."""
        task = request.stage
        run = None if task is None else task.run
        if run is None or run.over:
            return
        end = request.mailbox.end
        if isinstance(end, PontilError):
            self.end(run, end, "error")
        elif run.is_complete:
            self.close(run, Finished(run.first.reasons[0], run.usage, run.first.route_name))

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
        for worker in run.served & run.workers.keys():
            self.dispatcher.cancels.post(worker, Release(self.incarnation, worker, run.id))
        run.audio.close(end)
