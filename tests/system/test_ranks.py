# SPDX-License-Identifier: Apache-2.0
"""Workers of several ranks: the same responses as one process gives, for every pair of sizes, also after kills (H)."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from disturbed import MODEL, OPTIONS, DisturbedSite
from effort import is_long
from oracle import at_rest
from rank_answers import TOKENS, answers, group
from served import free_port, launched, wait_for
from streams import Streams
from tiny_llama import write_tiny_llama

from pontil.launcher.keys.key_file import make_key_file

# tests/runtime/worker/test_parity.py and tests/runtime/disaggregation/test_ranks.py compare all sizes by default.
SIZES = [(1, 2), (2, 1), (2, 2), (4, 1), (1, 4), (4, 2), (2, 4)]
# Ranks that end or stop: worker, rank, signal, and the tokens that every stream has then. By default one death.
FAULTS = [
    (worker, rank, number, tokens)
    for worker in ("prefill:0", "decode:0")
    for rank in (0, 1)
    for number in (signal.SIGKILL, signal.SIGSTOP)
    for tokens in (0, 4)
    if is_long() or (worker, rank, number, tokens) == ("decode:0", 1, signal.SIGKILL, 4)
]


def small_model(folder: Path) -> tuple[str, ...]:
    write_tiny_llama(folder / "small", num_layers=8, num_kv_heads=2, max_model_len=2048, dtype="bfloat16")
    named = ("--model", str(folder / "small"), "--served-model-name", MODEL)
    return (*named, *OPTIONS, "--kv-cache-memory", "32MiB")


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """The responses of one process."""
    folder = tmp_path_factory.mktemp("alone")
    with launched(folder, "--role", "mixed", "--mixed", "cpu:0", *small_model(folder)) as served:
        return answers(served)


@pytest.mark.long
@pytest.mark.parametrize(("prefill", "decode"), SIZES)
def test_every_pair_of_sizes_answers_like_one_process(
    alone: list[dict[str, Any]], tmp_path: Path, prefill: int, decode: int
) -> None:
    """H4, H5."""
    lists = ("--prefill", group(prefill, 0), "--decode", group(decode, 1), "--share-devices", "--disagg", "always")
    with launched(tmp_path, *lists, *small_model(tmp_path)) as served:
        assert answers(served) == alone
        at_rest(served)


@pytest.fixture(scope="module", params=["fast", "exact"] if is_long() else ["fast"])
def site(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DisturbedSite]:
    """Two workers of two ranks each, on two cores."""
    folder = tmp_path_factory.mktemp("ranks")
    arithmetic = ("--tensor-parallel-arithmetic", request.param)
    lists = ("--prefill", group(2, 0), "--decode", group(2, 1), "--share-devices", *arithmetic)
    with launched(folder, *lists, *small_model(folder)) as served:
        yield DisturbedSite(served, TOKENS, is_real=False)


@pytest.mark.parametrize(("name", "rank", "number", "tokens"), FAULTS)
def test_a_rank_dies_with_its_worker(
    site: DisturbedSite, name: str, rank: int, number: signal.Signals, tokens: int
) -> None:
    """H7: a rank that dies or falls silent, in any phase, ends its worker; streams go on exactly, nothing leaks."""
    victim = site.served.living(name, rank)

    def harm(streams: Streams) -> None:
        wait_for(lambda: streams.all_have(tokens), 60, f"{tokens} tokens of every stream")
        victim.send_signal(number)

    site.survives(harm, name)
    assert site.served.living(name, rank) != victim


@pytest.mark.long
def test_streams_of_a_group_go_on_in_one_process(tmp_path: Path) -> None:
    """H4: the worker of two ranks dies, and the streams continue on the one of a single process."""
    lists = ("--prefill", "cpu:0", "--decode", group(2, 1), "--share-devices")
    with launched(
        tmp_path, *lists, *small_model(tmp_path), "--restart-delay", "20", "--restart-max-delay", "20"
    ) as served:
        site = DisturbedSite(served, TOKENS, is_real=False)

        def harm(streams: Streams) -> None:
            wait_for(lambda: streams.all_have(4), 60, "tokens of every stream")
            served.kill("decode:0", rank=1)

        site.survives(harm, "decode:0")


@pytest.mark.long
def test_ranks_hand_over_across_a_network_with_keys(alone: list[dict[str, Any]], tmp_path: Path) -> None:
    """H5: by TCP, with the grants and keys of a network."""
    keys = tmp_path / "keys"
    make_key_file(keys)
    lists = ("--prefill", group(2, 0), "--decode", group(2, 1), "--share-devices", "--disagg", "always")
    network = ("--control", f"tcp://127.0.0.1:{free_port()}", "--keys", str(keys), "--kv-connector", "tcp")
    with launched(tmp_path, *lists, *network, *small_model(tmp_path)) as served:
        assert answers(served) == alone
        at_rest(served)
