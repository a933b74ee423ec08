# SPDX-License-Identifier: Apache-2.0
"""Play an agent's session whose beginning changes at every turn, and print how long each turn's first token took.

    python scripts/bench_session.py --url http://127.0.0.1:8000 --words 6000

The requests are those of Claude Code: streams of /v1/messages, with a line on billing as the first block of the system
prompt, another one at every turn, and a long system prompt behind it. Its words are random, so that nothing is cached
before the first turn. Start the server once with `--no-stable-prompts` and once without, and compare. One line of JSON
is printed for each turn: seconds from sending the request to the event `message_start`, which comes with the first
token, and the counts of prompt tokens by the server's usage. Needs only Python's standard library.
"""

import argparse
import http.client
import json
import random
import time
from typing import Any
from urllib.parse import urlsplit

from own_key import key_headers

BILLING = "x-anthropic-billing-header: cc_version=2.1.177.{0}; cc_entrypoint=cli; cch={1};"
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "he")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--words", type=int, default=6000, help="of the system prompt, about a token each")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=16)
    options = parser.parse_args()
    chance, turns = random.Random(), list[dict[str, Any]]()
    system = "You are an agent. " + " ".join(chance.choices(WORDS, k=options.words))
    for turn in range(1, options.turns + 1):
        turns.append({"role": "user", "content": f"What comes next? This is turn {turn}."})
        billing = BILLING.format(f"{chance.getrandbits(12):03x}", f"{chance.getrandbits(20):05x}")
        blocks = [{"type": "text", "text": billing}, {"type": "text", "text": system}]
        body = {"max_tokens": options.max_tokens, "stream": True, "system": blocks, "messages": turns, "temperature": 0}
        row, text = answered(options.url, body)
        turns.append({"role": "assistant", "content": text or "…"})
        print(json.dumps({"turn": turn} | row), flush=True)


def answered(url: str, body: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the figures of a streamed message, and its text."""
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=600)
    begun = time.perf_counter()
    connection.request("POST", "/v1/messages", json.dumps(body), key_headers() | {"content-type": "application/json"})
    response, first, pieces, usage = connection.getresponse(), 0.0, list[str](), dict[str, int]()
    assert response.status == 200, response.read().decode()
    for line in response:
        if not line.startswith(b"data: "):
            continue
        event = json.loads(line[6:])
        if event["type"] == "message_start":
            first = time.perf_counter() - begun
        usage |= event.get("usage", event.get("message", {}).get("usage", {}))
        pieces.append(event.get("delta", {}).get("text", ""))
    connection.close()
    cached = usage["cache_read_input_tokens"]
    row = {"first_token_seconds": round(first, 3), "prompt_tokens": usage["input_tokens"] + cached, "cached": cached}
    return row | {"lines": response.headers.get("x-pontil-lines")}, "".join(pieces)


if __name__ == "__main__":
    main()
