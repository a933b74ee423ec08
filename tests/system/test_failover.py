# SPDX-License-Identifier: Apache-2.0
"""A worker is killed under load, without effect on any client's stream (promises 1, 2, 4 and 5)."""

import json
import random
import signal
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from disturbed import MODEL, DisturbedSite, options
from oracle import at_rest, check, check_growth
from served import Served, launched, wait_for
from streams import Streams

# By default one worker dies and clients leave, on the launch that other files share. tests/world kills and stops
# processes at any point, and has a second decode worker to which streams are moved.
LONG = pytest.mark.long


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DisturbedSite]:
    """A launch with a second decode worker, on the core of the first."""
    lists = ("--share-devices", "--prefill", "cpu:0", "--decode", "cpu:1,cpu:1")
    folder = tmp_path_factory.mktemp("spare")
    with launched(folder, *lists, *options(folder)) as served:
        yield DisturbedSite(served)


@pytest.fixture(scope="module")
def pair(small_pair: Served) -> DisturbedSite:
    return DisturbedSite(small_pair)


@LONG
def test_a_decode_worker_dies_with_streams_in_flight(spare: DisturbedSite) -> None:
    assert any(spare.moves_streams_of("decode:0", 4) for _ in range(4))


@LONG
def test_both_decode_workers_die_one_after_the_other(spare: DisturbedSite) -> None:
    def harm(streams: Streams) -> None:
        spare.kills("decode:1", 2)(streams)
        wait_for(lambda: streams.all_have(12), 60, "tokens after the first death")
        spare.kill("decode:0")

    spare.survives(harm, "decode:0", "decode:1")


@LONG
@pytest.mark.parametrize("tokens", [0, 1, 20])
def test_the_only_decode_worker_dies(pair: DisturbedSite, tokens: int) -> None:
    pair.survives(pair.kills("decode:0", tokens), "decode:0")


@LONG
@pytest.mark.parametrize("tokens", [0, 1])
def test_the_prefill_worker_dies(pair: DisturbedSite, tokens: int) -> None:
    """Kills before or during the transfers, and after them."""
    pair.survives(pair.kills("prefill:0", tokens), "prefill:0")


@LONG
def test_both_die_at_once(pair: DisturbedSite) -> None:
    def harm(streams: Streams) -> None:
        pair.kills("decode:0", 3)(streams)
        pair.kill("prefill:0")

    pair.survives(harm, "decode:0", "prefill:0")


@LONG
def test_a_decode_worker_is_stopped_for_ten_seconds_and_resumed(spare: DisturbedSite) -> None:
    """A silent worker is killed and replaced; if it still runs when it is resumed, its messages are ignored."""
    silent = threading.Event()

    def harm(streams: Streams) -> None:
        wait_for(lambda: streams.all_have(4), 60, "tokens of every stream")
        victim = spare.served.living("decode:0")
        victim.suspend()
        silent.wait(10)
        with suppress(psutil.NoSuchProcess):
            victim.resume()

    spare.survives(harm, "decode:0")


@LONG
def test_workers_that_are_told_to_end_hand_their_streams_over(spare: DisturbedSite) -> None:
    def harm(streams: Streams) -> None:
        wait_for(lambda: streams.all_have(4), 60, "tokens of every stream")
        spare.kill("decode:1", signal.SIGTERM)
        wait_for(lambda: streams.all_have(10), 60, "tokens of every stream")
        spare.kill("prefill:0", signal.SIGTERM)

    spare.survives(harm, "decode:1", "prefill:0")


class Leaver(threading.Thread):
    """A client that sends a request and resets the connection after a while, as a killed one does, at any stage of the
    request."""

    def __init__(self, served: Served, body: dict[str, Any], patience: float) -> None:
        super().__init__()
        self.served, self.body, self.patience = served, body, patience

    def run(self) -> None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.served.port), 10) as client:
            data = json.dumps({"model": MODEL, **self.body}).encode()
            head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
            client.sendall(head.encode() + data)
            threading.Event().wait(self.patience)
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def leavers(served: Served, seed: int, count: int) -> list[Leaver]:
    drawn = random.Random(seed)
    made = []
    for number in range(count):
        body = {
            "prompt": [20 + (number + 13 * i) % 240 for i in range(drawn.choice([1, 30, 200, 900]))],
            "max_tokens": drawn.choice([1, 20, 200]), "n": drawn.choice([1, 1, 3]), "stream": drawn.random() < 0.7,
            "ignore_eos": True,
        }  # fmt: skip
        made.append(Leaver(served, body, drawn.uniform(0, 4)))
    return made


@pytest.mark.parametrize(
    ("killed", "count"),
    [(None, 24), pytest.param("decode:0", 16, marks=LONG), pytest.param("prefill:0", 16, marks=LONG),
     pytest.param(None, 200, marks=LONG)],
)  # fmt: skip
def test_clients_leave_in_every_state(pair: DisturbedSite, killed: str | None, count: int) -> None:
    """Requests queued, prefilling, transferring, waiting, decoding, failing over: nothing is left of them."""
    before = at_rest(pair.served)
    clients = leavers(pair.served, count, count)
    for number, client in enumerate(clients):
        client.start()
        if killed and number == count // 2:
            pair.kill(killed)
    for client in clients:
        client.join()
    check(pair.served, before, *([killed] if killed else []))
    assert pair.answer_about_a_capital() == pair.capital


@LONG
def test_nothing_grows_over_many_deaths(pair: DisturbedSite) -> None:
    seen = [pair.survives(pair.kills("decode:0", 3 * number), "decode:0") for number in range(1, 6)]
    check_growth(seen[1], seen[-1], {"proxy", "prefill:0"})
