# SPDX-License-Identifier: Apache-2.0
"""Measure a running server that speaks, over HTTP: chats in sound, and the same chats in text alone.

    python app.py launch --model speech-demo --port 8123
    python scripts/bench_spoken.py --url http://127.0.0.1:8123 --rounds 9

Each round sends one streamed, greedy chat in text and one in text and sound, in turn the one or the other first. A pair
of them comes before the first round and is not measured. No prompt is in a cache. Needs only Python's standard library;
shares the machine with the server it measures.

Definitions; each figure is the median over rounds, with the least and the greatest:

  first text    from sending the request to the first event with text
  first sound   from sending the request to the first event with sound
  real time     seconds from sending the request to the last sound, for a second of sound
  a token       from the first event with text to the last, divided by the tokens of text after the first
  overhead      of one round: the time for a token with sound over that without, in percent
"""

import argparse
import base64
import http.client
import json
import secrets
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from own_key import key_headers

BYTES_PER_SAMPLE = 2
QUESTION = "Tell me in a few sentences about the city of Paris and its river."


@dataclass(frozen=True)
class SpokenTiming:
    """One answer: seconds since it was asked for, tokens of text, bytes of sound."""

    first_text: float
    last_text: float
    tokens: int
    first_sound: float = 0.0
    last_sound: float = 0.0
    size: int = 0

    @property
    def per_token(self) -> float:
        return (self.last_text - self.first_text) / (self.tokens - 1)

    def real_time(self, sample_rate: int) -> float:
        return self.last_sound * BYTES_PER_SAMPLE * sample_rate / self.size


def events(reply: http.client.HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the events of a stream up to its end. Raises ValueError for an error in it, and for a missing end."""
    for line in reply:
        if line.startswith(b"data: [DONE]"):
            return
        if line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                raise ValueError(f"the server ended a stream with: {event['error']}")
            yield event
    raise ValueError("a stream broke off before its end")


def ask(url: str, question: str, max_tokens: int, *, sound: bool) -> SpokenTiming:
    """Send one chat and time its pieces. Raises OSError, ValueError or HTTPException if it fails."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "127.0.0.1", place.port or 80, timeout=600)
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": question}], "temperature": 0, "max_tokens": max_tokens,
        "stream": True, "stream_options": {"include_usage": True}, "cache_salt": secrets.token_hex(8),
    }  # fmt: skip
    if sound:
        body |= {"modalities": ["text", "audio"], "audio": {"format": "pcm16"}}
    texts, sounds, size, usage = list[float](), list[float](), 0, dict[str, Any]()
    try:
        began = time.perf_counter()
        headers = {"content-type": "application/json"} | key_headers()
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        reply = connection.getresponse()
        if reply.status != 200:
            raise ValueError(f"the server answered {reply.status}: {reply.read(1000).decode(errors='replace')}")
        for event in events(reply):
            now = time.perf_counter() - began
            usage = event.get("usage") or usage
            for delta in (choice["delta"] for choice in event["choices"]):
                spoken = delta.get("audio") or {}
                if delta.get("content") or spoken.get("transcript"):
                    texts.append(now)
                if spoken.get("data"):
                    sounds.append(now)
                    size += len(base64.b64decode(spoken["data"]))
    finally:
        connection.close()
    details = usage.get("completion_tokens_details") or {}
    tokens = usage.get("completion_tokens", 0) - details.get("audio_tokens", 0)
    if len(texts) < 2 or tokens < 2 or (sound and not size):
        raise ValueError(
            f"an answer of {tokens} tokens and {size} bytes of sound cannot be timed: ask another question"
        )
    if not sound:
        return SpokenTiming(texts[0], texts[-1], tokens)
    return SpokenTiming(texts[0], texts[-1], tokens, sounds[0], sounds[-1], size)


def spread(values: Sequence[float], digits: int) -> str:
    """Return the median with the least and the greatest."""
    return f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f}–{max(values):.{digits}f})"


def table(rounds: Sequence[tuple[SpokenTiming, SpokenTiming]], sample_rate: int) -> list[str]:
    """Return the lines of the table of rounds, each an answer in text and one in sound. Raises ValueError if these are
    not equally long."""
    if any(text.tokens != spoken.tokens for text, spoken in rounds):
        raise ValueError("an answer in sound has other tokens than the one in text")
    texts, spoken = [text for text, _ in rounds], [one for _, one in rounds]
    seconds = [one.size / BYTES_PER_SAMPLE / sample_rate for one in spoken]
    overhead = [100 * (one.per_token / text.per_token - 1) for text, one in rounds]
    return [
        f"| {len(rounds)} rounds, {texts[0].tokens} tokens, {statistics.median(seconds):.1f} s of sound | text | "
        "text and sound |",
        "|---|---|---|",
        f"| first text, ms | {spread([1e3 * one.first_text for one in texts], 0)} | "
        f"{spread([1e3 * one.first_text for one in spoken], 0)} |",
        f"| first sound, ms | – | {spread([1e3 * one.first_sound for one in spoken], 0)} |",
        f"| real time | – | {spread([one.real_time(sample_rate) for one in spoken], 3)} |",
        f"| a token, ms | {spread([1e3 * one.per_token for one in texts], 2)} | "
        f"{spread([1e3 * one.per_token for one in spoken], 2)} |",
        f"| overhead, % | – | {spread(overhead, 1)} |",
    ]


def measure(url: str, question: str, max_tokens: int, rounds: int) -> Iterator[tuple[SpokenTiming, SpokenTiming]]:
    """Yield the answers in text and in sound of each round, after one that is not measured."""
    for number in range(rounds + 1):
        order = (False, True) if number % 2 else (True, False)
        made = {sound: ask(url, question, max_tokens, sound=sound) for sound in order}
        if number:
            yield made[False], made[True]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", default="http://127.0.0.1:8000")
    parser.add_argument("--rounds", type=int, default=9, choices=range(1, 1001), metavar="1..1000")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--question", default=QUESTION)
    parser.add_argument("--sample-rate", type=int, default=24000, help="samples in a second of the model's sound")
    args = parser.parse_args()
    try:
        rounds = list(measure(args.url, args.question, args.max_tokens, args.rounds))
        print("\n".join(table(rounds, args.sample_rate)))
    except (OSError, ValueError, http.client.HTTPException) as error:
        sys.exit(f"Error: {error}")


if __name__ == "__main__":
    main()
