# SPDX-License-Identifier: Apache-2.0
"""Measure /health while clients read a stream again and again from its beginning.

    python scripts/bench_replays.py --url http://127.0.0.1:8000 --clients 20

One stream with `pontil-resume: 1` is read to its end; then each client sends its first id as `Last-Event-ID`, reads all
that comes, and begins anew. Printed are the stream's bytes, the times of /health before and meanwhile, and the statuses
of the replays. Needs only Python's standard library; it shares the machine with the server it measures.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
from collections import Counter
from urllib.parse import urlsplit

from own_key import key_headers

PATH = "/v1/completions"
# Seconds between two requests for /health, and for which it is asked for before.
EVERY, QUIET_SECONDS = 0.02, 6.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=440, help="of each choice")
    parser.add_argument("--choices", type=int, default=32)
    parser.add_argument("--seconds", type=float, default=12.0)
    given = parser.parse_args()
    place = urlsplit(given.url)

    def connect() -> http.client.HTTPConnection:
        return http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=300)

    def post(body: bytes, **more: str) -> http.client.HTTPResponse:
        connection = connect()
        headers = {"content-type": "application/json", **key_headers(), **more}
        connection.request("POST", PATH, body, headers)
        return connection.getresponse()

    def health(seconds: float) -> str:
        took, until, connection = list[float](), time.monotonic() + seconds, connect()
        while time.monotonic() < until:
            begun = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            took.append(1000 * (time.perf_counter() - begun))
            time.sleep(EVERY)
        took.sort()
        return f"p50 {statistics.median(took):.1f}, p95 {took[int(0.95 * len(took))]:.1f}, most {took[-1]:.1f} ms"

    asked = {"prompt": "Once upon a time", "max_tokens": given.tokens, "n": given.choices, "ignore_eos": True}
    lines = list(post(json.dumps(asked | {"stream": True}).encode(), **{"pontil-resume": "1"}))
    ids = [line[3:].strip().decode() for line in lines if line.startswith(b"id:")]
    if not ids:
        raise SystemExit(f"no stream came: {b''.join(lines)[:300].decode()}")
    print(f"a stream of {sum(map(len, lines)) / 1e6:.1f} MB in {len(ids)} events")
    print(f"/health alone:  {health(QUIET_SECONDS)}")
    ended, statuses = threading.Event(), Counter[int]()

    def replay() -> None:
        while not ended.is_set():
            answer = post(b"", **{"last-event-id": ids[0]})
            answer.read()
            statuses[answer.status] += 1

    threads = [threading.Thread(target=replay) for _ in range(given.clients)]
    for thread in threads:
        thread.start()
    print(f"/health beside: {health(given.seconds)}")
    ended.set()
    for thread in threads:
        thread.join()
    print(f"replays: {', '.join(f'{count} × {status}' for status, count in sorted(statuses.items()))}")


if __name__ == "__main__":
    main()
