# SPDX-License-Identifier: Apache-2.0
"""Measure a running OpenAI-compatible server over HTTP: random prompts of token ids, greedy, streamed.

    python scripts/bench_serving.py --url http://127.0.0.1:8000 --model smollm2-135m-instruct --concurrency 1 8

TTFT is from sending the request to the first event with a token in it. TPOT is the time from the first to
the last token divided by the tokens after the first. Output rate is all tokens over the wall time of the run. Tokens
are what the server's usage says. A request that fails counts as a failure and in no other figure. One warm-up request
comes first. Needs nothing but Python's standard library; it shares the machine with the server it measures.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import threading
import time
from dataclasses import asdict, dataclass
from urllib.parse import urlsplit


@dataclass(frozen=True)
class Timing:
    """One request. Times in seconds."""

    ttft: float
    tpot: float
    total: float
    tokens: int
    longest_gap: float


def ask(url: str, model: str, prompt: list[int], tokens: int) -> Timing:
    """One streamed completion. Raises OSError, ValueError or HTTPException when it fails."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=300)
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    begun = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(body), {"content-type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise ValueError(f"HTTP {response.status}: {response.read()[:300].decode(errors='replace')}")
    arrivals, used = [], 0
    for line in response:
        if line.startswith(b"data: {"):
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(event["error"]["message"])
            if event["choices"]:
                arrivals.append(time.perf_counter())
            if event.get("usage"):
                used = event["usage"]["completion_tokens"]
    connection.close()
    if not arrivals or used < 1:
        raise ValueError("the answer had no tokens")
    gaps = [later - earlier for earlier, later in zip(arrivals, arrivals[1:], strict=False)]
    spread = (arrivals[-1] - arrivals[0]) / max(1, used - 1)
    return Timing(arrivals[0] - begun, spread, arrivals[-1] - begun, used, max(gaps, default=0.0))


class Run:
    """`count` requests, `concurrency` at a time."""

    def __init__(self, arguments: argparse.Namespace, concurrency: int) -> None:
        self.arguments, self.concurrency = arguments, concurrency
        self.left = list(range(arguments.requests_per_stream * concurrency))
        self.timings: list[Timing] = []
        self.failures: list[str] = []
        self.lock = threading.Lock()

    def prompt(self, number: int) -> list[int]:
        source = random.Random(self.arguments.seed * 100_003 + self.concurrency * 1009 + number)
        return [source.randrange(100, self.arguments.vocabulary) for _ in range(self.arguments.prompt_tokens)]

    def stream(self) -> None:
        while True:
            with self.lock:
                if not self.left:
                    return
                number = self.left.pop()
            self.one(number)

    def one(self, number: int) -> None:
        arguments = self.arguments
        try:
            timing = ask(arguments.url, arguments.model, self.prompt(number), arguments.output_tokens)
        except (OSError, ValueError, http.client.HTTPException) as error:
            with self.lock:
                self.failures.append(str(error))
        else:
            with self.lock:
                self.timings.append(timing)

    def measure(self) -> dict[str, object]:
        begun = time.perf_counter()
        threads = [threading.Thread(target=self.stream) for _ in range(self.concurrency)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return self.summary(time.perf_counter() - begun)

    def summary(self, wall: float) -> dict[str, object]:
        done = self.timings
        figures: dict[str, object] = {
            "concurrency": self.concurrency,
            "requests": len(done),
            "failures": len(self.failures),
        }
        if done:
            figures |= {
                "ttft_ms_median": round(statistics.median(one.ttft for one in done) * 1000, 1),
                "tpot_ms_median": round(statistics.median(one.tpot for one in done) * 1000, 1),
                "longest_gap_ms_median": round(statistics.median(one.longest_gap for one in done) * 1000, 1),
                "output_tokens_per_second": round(sum(one.tokens for one in done) / wall, 1),
            }
        return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--requests-per-stream", type=int, default=4, help="requests each concurrent stream makes")
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=64)
    parser.add_argument("--vocabulary", type=int, default=40_000, help="random token ids lie below this")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--raw", help="append every request's figures to this file, one JSON object a line")
    arguments = parser.parse_args()
    failed = 0
    for concurrency in arguments.concurrency:
        Run(arguments, 1).one(-1)
        run = Run(arguments, concurrency)
        print(json.dumps(run.measure()), flush=True)
        failed += len(run.failures)
        for reason in run.failures[:3]:
            print(f"failed: {reason}", file=sys.stderr)
        if arguments.raw:
            with open(arguments.raw, "a") as file:
                file.writelines(json.dumps(asdict(one) | {"concurrency": concurrency}) + "\n" for one in run.timings)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
