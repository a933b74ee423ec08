# SPDX-License-Identifier: Apache-2.0
"""The cost of accounting: per token in the proxy, per request with a usage log, and per step in a worker.

    python scripts/bench_accounting.py [--tokens 200000] [--step-ms 17.5]

Each figure is the least of several runs. A step's share is of `--step-ms`, a decode step of SmolLM2 on one core.
"""

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.accounting.counts import DECODE, PREFILL, Account, Usage  # noqa: E402
from pontil.runtime.accounting.ledger import REPEATED, Ledger  # noqa: E402
from pontil.runtime.accounting.usage_file import UsageFile  # noqa: E402
from pontil.runtime.accounting.usage_log import UsageLog  # noqa: E402
from pontil.runtime.accounting.usage_tables import CLOSED, RequestRow, ShareRow  # noqa: E402
from pontil.runtime.engine.sequences.output_record import OutputRecord  # noqa: E402
from pontil.runtime.engine.sequences.sequence import Sequence  # noqa: E402
from pontil.runtime.sampling_params import SamplingParams  # noqa: E402

RUNS = 5
ROWS = 64


def least(measure: Callable[[], float]) -> float:
    return min(measure() for _ in range(RUNS))


def per_token(tokens: int) -> float:
    """Return the seconds for one frame of one token: in the account that is billed, and in the ledger that checks
    it."""
    ledger, account = Ledger(), Account(9, tokens + 1)
    account.open(0, (PREFILL, DECODE))
    entry = ledger.open("r", 9)
    entry.begin(0, {"p": PREFILL, "d": DECODE})
    begun = time.perf_counter()
    for index in range(1, tokens + 1):
        made = entry.hear(0, "d", 0, index, 1)
        account.accept(0, DECODE, 1, None, 0, 0)
        account.finish_reason(None, 0)
        entry.settle(made, 1, REPEATED)
    return (time.perf_counter() - begun) / tokens


def per_request(requests: int) -> tuple[float, float]:
    """Return the seconds that the event loop spends on a request's two rows, and that one request alone waits for its
    row."""
    with tempfile.TemporaryDirectory() as folder:
        log = UsageLog(UsageFile(Path(folder) / "usage.db"))
        begun = time.perf_counter()
        for number in range(requests):
            post(log, str(number))
        posted = (time.perf_counter() - begun) / requests
        waits = []
        for number in range(20):
            begun = time.perf_counter()
            receipt = post(log, f"alone-{number}")
            if receipt is not None:
                receipt.result(10)
            waits.append(time.perf_counter() - begun)
        log.close()
    return posted, sorted(waits)[len(waits) // 2]


def post(log: UsageLog, name: str) -> "Future[None] | None":
    row = RequestRow(name, "x", "n", "-", "m", "p>d", CLOSED, "stop", 1, 1, 9, 0, 9, 9, 9, 0, 1.0, None, 0.1, 0.2, 9)
    log.post([row])
    return log.post([row, ShareRow(name, "p", 0, PREFILL, 1, 9), ShareRow(name, "d", 0, DECODE, 8, 0)], wanted=True)


def per_step(steps: int) -> float:
    """Return the seconds that a worker spends on counting in a step of ROWS sequences, one of which ends."""
    params = SamplingParams(max_tokens=100, seed=1)
    batch = [
        Sequence(str(row), [1] * 9, params, frozenset(), output=list(range(50)), record=OutputRecord(received=1))
        for row in range(ROWS)
    ]
    generated = stated = 0
    begun = time.perf_counter()
    for _ in range(steps):
        generated += len(batch)
        for sequence in batch:
            if sequence is batch[0]:
                stated += sequence.record.generated
    return (time.perf_counter() - begun) / steps


def per_close(requests: int) -> float:
    """Return the seconds to open and close an entry."""
    ledger = Ledger()
    begun = time.perf_counter()
    for number in range(requests):
        ledger.open(str(number), 9).begin(0, {"p": PREFILL, "d": DECODE})
        ledger.close(str(number), Usage(9, 0, 0))
    return (time.perf_counter() - begun) / requests


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--tokens", type=int, default=200_000)
    parser.add_argument("--step-ms", type=float, default=17.5)
    given = parser.parse_args()
    token = least(lambda: per_token(given.tokens))
    step = least(lambda: per_step(2000))
    posted, waited = per_request(2000)
    print(f"proxy, per token          {token * 1e6:8.2f} us   (limit 5)")
    print(f"proxy, per request        {least(lambda: per_close(5000)) * 1e6:8.2f} us   ledger only")
    print(f"proxy, per request        {posted * 1e6:8.2f} us   rows given to the usage log")
    print(f"end of a reply waits      {waited * 1e3:8.2f} ms   for its row, alone")
    share = step / (given.step_ms / 1e3)
    print(f"worker, per step of {ROWS:<4}  {step * 1e6:8.2f} us   {share:.3%} of {given.step_ms:g} ms (limit 1%)")


if __name__ == "__main__":
    main()
