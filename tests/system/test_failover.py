# SPDX-License-Identifier: Apache-2.0
"""A worker is killed under load, and no client can tell from its stream (promises 1, 2, 4 and 5)."""

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oracle import Rest, at_rest, check, check_growth
from served import Served, launched, wait_for
from streams import Streams

MODEL = "smollm2-135m-instruct"
STORY = "The old lighthouse keeper climbed the stairs every night, and every night the sea told him a little more. "
DRAWN = {"temperature": 0.9, "top_p": 0.95, "ignore_eos": True}
# Eight streams: greedy and drawn, several choices, everything that changes logits, a stop string.
ASKED: list[dict[str, Any]] = [
    {"prompt": STORY, "temperature": 0, "ignore_eos": True},
    {"prompt": [1000 + 13 * i for i in range(300)], "temperature": 0, "ignore_eos": True},
    {"prompt": STORY, "seed": 11, **DRAWN},
    {"prompt": [504], "seed": 12, **DRAWN},
    {"prompt": STORY, "seed": 7, "n": 3, **DRAWN},
    {"prompt": "🎉🚀 Congratulations 👩‍🚀! Reply with emoji: 😀", "temperature": 0, "ignore_eos": True},
    {"prompt": STORY, "temperature": 0, "stop": ["lighthouse keeper had"], "ignore_eos": True},
    {
        "prompt": STORY, "seed": 3, "n": 2, "logprobs": 2, "presence_penalty": 0.5, "frequency_penalty": 0.3,
        "repetition_penalty": 1.1, "logit_bias": {"504": 2.5}, "min_tokens": 20, **DRAWN,
    },
]  # fmt: skip
TOKENS = 60
# The size that a worker chooses depends on what is free when it starts, and some start again.
POOL = ("--kv-cache-memory", "512MiB")


def bodies(salt: str) -> list[dict[str, Any]]:
    return [{"model": MODEL, "max_tokens": TOKENS, "cache_salt": f"{salt}{number}"} | body
            for number, body in enumerate(ASKED)]  # fmt: skip


class Site:
    """A system with the answers it gives when nothing happens to it."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self.rounds = 0
        self.before: Rest = at_rest(served)
        told = Streams(served, bodies("undisturbed")).finish()
        assert all(one.done and one.error is None for one in told)
        self.answers = [one.answer for one in told]

    def survives(self, harm: Callable[[Streams], None], *killed: str) -> Rest:
        """All streams give the undisturbed answers though `harm` is done, and nothing is left of it."""
        before = at_rest(self.served)
        self.rounds += 1
        streams = Streams(self.served, bodies(f"round {self.rounds}, "))
        harm(streams)
        for told, expected in zip(streams.finish(), self.answers, strict=True):
            assert told.answer == expected
        after = check(self.served, before, *killed)
        assert after.free_blocks == self.before.free_blocks
        return after

    def kill(self, name: str, number: signal.Signals = signal.SIGKILL) -> None:
        os.kill(self.served.topology()[name]["pid"], number)

    def failovers(self) -> float:
        return self.served.metric('pontil_failovers_total{cause="died"}')


def kills(site: Site, name: str, tokens: int) -> Callable[[Streams], None]:
    """Once every stream has so many tokens."""

    def harm(streams: Streams) -> None:
        wait_for(lambda: streams.all_have(tokens), 60, f"{tokens} tokens of every stream")
        site.kill(name)

    return harm


@pytest.fixture(scope="module")
def spare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A second decode worker, on the core of the first."""
    lists = ("--share-devices", "--prefill", "cpu:0", "--decode", "cpu:1,cpu:1")
    with launched(tmp_path_factory.mktemp("spare"), *lists, *POOL) as served:
        yield Site(served)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with launched(tmp_path_factory.mktemp("pair"), *POOL) as served:
        yield Site(served)


def test_a_decode_worker_dies_with_streams_in_flight(spare: Site) -> None:
    before = spare.failovers()
    spare.survives(kills(spare, "decode:0", 4), "decode:0")
    assert spare.failovers() > before


def test_both_decode_workers_die_one_after_the_other(spare: Site) -> None:
    def harm(streams: Streams) -> None:
        kills(spare, "decode:1", 2)(streams)
        wait_for(lambda: streams.all_have(12), 60, "tokens after the first death")
        spare.kill("decode:0")

    spare.survives(harm, "decode:0", "decode:1")


@pytest.mark.parametrize("tokens", [0, 1, 20])
def test_the_only_decode_worker_dies(pair: Site, tokens: int) -> None:
    pair.survives(kills(pair, "decode:0", tokens), "decode:0")


@pytest.mark.parametrize("tokens", [0, 1])
def test_the_prefill_worker_dies(pair: Site, tokens: int) -> None:
    """Before or during the transfers, and after them."""
    pair.survives(kills(pair, "prefill:0", tokens), "prefill:0")


def test_both_die_at_once(pair: Site) -> None:
    def harm(streams: Streams) -> None:
        kills(pair, "decode:0", 3)(streams)
        pair.kill("prefill:0")

    pair.survives(harm, "decode:0", "prefill:0")


@pytest.mark.long
def test_nothing_grows_over_many_deaths(pair: Site) -> None:
    seen = [pair.survives(kills(pair, "decode:0", 3 * number), "decode:0") for number in range(1, 6)]
    check_growth(seen[1], seen[-1], {"proxy", "prefill:0"})
