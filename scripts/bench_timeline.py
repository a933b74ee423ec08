# SPDX-License-Identifier: Apache-2.0
"""The cost of knowing where requests' time went: per token and per request in the proxy, per step in a worker.

    python scripts/bench_timeline.py [--tokens 1000000]

Each figure is CPU time, the least of several runs.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.timeline.received import ReceivedRequest  # noqa: E402
from pontil.runtime.timeline.recorder import RequestRecorder  # noqa: E402
from pontil.runtime.timeline.step_gaps import BUFFER, StepGaps  # noqa: E402
from pontil.runtime.timeline.timeline import COMPLETE, TimelineRow  # noqa: E402
from pontil.runtime.timeline.timelines import Timelines  # noqa: E402
from pontil.runtime.timeline.work_times import WorkTimes  # noqa: E402
from pontil.runtime.wire.messages import AttemptTimes  # noqa: E402

RUNS = 5
ROWS = 64
ROW = TimelineRow("r-1", 0.0, "tiny", "-", "alice", COMPLETE, "stop", 3, 1, 2, 1, 0.5, 2.0, ("prefill:0", "decode:0"))


def least(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(RUNS))


def per_token(tokens: int) -> float:
    """Return the seconds for the time of one token, as TokenSource.try_accept takes it, with its share of the folding
    of an answer of 4096 tokens."""
    spent, gaps, now = 0.0, StepGaps(), 0.0
    for first in range(0, tokens, 4096):
        gaps = StepGaps()
        begun = time.thread_time()
        for step in range(first, first + 4096):
            now = step * 0.01
            arrivals = gaps.arrivals
            arrivals.append(now)
            if len(arrivals) >= BUFFER:
                gaps.settle()
        spent += time.thread_time() - begun
    return spent / (first + 4096) - loop(tokens)


def loop(tokens: int) -> float:
    """Return the seconds of the loop itself, for one token."""
    begun = time.thread_time()
    for step in range(tokens):
        step * 0.01
    return (time.thread_time() - begun) / tokens


def per_request(requests: int) -> tuple[float, float]:
    """Return the seconds for a request of one attempt by two workers that report, and those to make its timeline."""
    timelines, shown = Timelines(time.monotonic), 0.0
    begun = time.thread_time()
    for number in range(requests):
        name, now = f"r-{number}", time.monotonic()
        recorder, received = RequestRecorder(), ReceivedRequest("/v1/chat/completions")
        for part in ("receive", "tokenize", "write"):
            received.note(part, now, now)
        recorder.admit(now, received, lambda at: ROW)
        timelines.admit(name, recorder)
        recorder.begin(0, {"P": "prefill:0", "D": "decode:0"}, now)
        timelines.end(TimelineRow(name, *(getattr(ROW, field) for field in TimelineRow.__slots__[1:])), now)
        chunks, pulls = [0.0, 0.1, 256] * 4, [0.0, 0.1, 16, 1 << 20] * 4
        timelines.take(AttemptTimes("P", "x", name, 0, 1.0, 0.0, chunks, [], [0.1, 0.2], [], 0.1, 0.1))
        timelines.take(AttemptTimes("D", "x", name, 0, 1.0, 0.0, [], pulls, [], [], 0.1, 0.9))
    whole = (time.thread_time() - begun) / requests
    begun = time.thread_time()
    for recorder in timelines.ended.values():
        recorder.timeline(time.monotonic()).to_json()
    shown = (time.thread_time() - begun) / len(timelines.ended)
    return whole, shown


def per_step(steps: int) -> float:
    """Return the seconds that a worker spends in a step of ROWS sequences."""
    batch = [WorkTimes() for _ in range(ROWS)]
    begun = time.thread_time()
    for step in range(steps):
        now = float(step)
        for times in batch:
            times.token(now)
    return (time.thread_time() - begun) / steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    tokens = parser.parse_args().tokens
    print(f"per token in the proxy: {least(lambda: per_token(tokens)) * 1e6:.2f} µs")
    print(f"per request in the proxy: {least(lambda: per_request(2000)[0]) * 1e6:.0f} µs")
    print(f"to show one: {least(lambda: per_request(2000)[1]) * 1e6:.0f} µs")
    print(f"per step of {ROWS} sequences in a worker: {least(lambda: per_step(2000)) * 1e6:.1f} µs")


if __name__ == "__main__":
    main()
