# SPDX-License-Identifier: Apache-2.0
"""The load generator, against servers whose every answer is known."""

import csv
import json
import random
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from known_server import FAILS, HOSTILE, REFUSED, KnownServer, known_server

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.tools.bench.bench import CLOSE, MOST_TRIALS, highest_rate
from pontil.launcher.tools.bench.bench_run import Outcomes
from pontil.launcher.tools.bench.command import bench
from pontil.launcher.tools.bench.figures import Limits, figures_of, spread
from pontil.launcher.tools.bench.questions import random_ids
from pontil.launcher.tools.bench.stream_client import Timing


@pytest.fixture
def server() -> Iterator[KnownServer]:
    with known_server() as made:
        yield made


@pytest.fixture
def other() -> Iterator[KnownServer]:
    with known_server() as made:
        yield made


class Ran:
    """The outcome of a command: its exit code, its outputs, and the JSON objects that it printed."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        made = CliRunner(env=variables).invoke(bench, arguments, standalone_mode=False)
        if made.exception is not None and not isinstance(made.exception, SystemExit):
            raise made.exception
        self.code, self.out, self.err = made.return_value, made.stdout, made.stderr

    @property
    def figures(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]


def test_counts_what_usage_says_and_asks_for_what_it_was_told(server: KnownServer, tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    done = Ran(
        server.url, "--concurrency", "2", "--requests", "5", "--prompt-tokens", "9", "--output-tokens", "4",
        "--json", "--raw", str(raw),
    )  # fmt: skip
    assert done.code == 0
    figures = done.figures[0]
    assert (figures["requests"], figures["failures"], figures["concurrency"]) == (5, 0, 2)
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (45, 20)
    # The warm-up prompt differs, so nothing it left in a cache helps.
    assert len(server.asked) == 6
    assert len({tuple(each["prompt"]) for each in server.asked}) == 6
    assert {each["model"] for each in server.asked} == {"known"} and all(each["ignore_eos"] for each in server.asked)
    lines = [json.loads(line) for line in raw.read_text().splitlines()]
    assert [line["tokens"] for line in lines] == [4] * 5
    assert all(len(line["gaps"]) == 1 and line["e2e"] >= line["ttft"] > 0 for line in lines)


def test_a_table_names_what_its_words_mean(server: KnownServer) -> None:
    done = Ran(server.url, "--concurrency", "1,3", "--output-tokens", "2", "--ttft-limit", "60000")
    assert done.code == 0
    head, rule, *rows = done.out.splitlines()
    columns = [cell.strip() for cell in head.strip("|").split("|")]
    assert set(rule) <= set("| -:") and columns[:2] == ["server", "load"] and columns[-2:] == ["kept", "goodput/s"]
    assert [row.split("|")[2].strip() for row in rows] == ["1 streams", "3 streams"]
    assert [row.split("|")[-3].strip() for row in rows] == ["1.0", "1.0"]
    for term in ("TTFT", "TPOT", "ITL", "E2E", "failure", "goodput"):
        assert term in done.err


def test_a_chat_sends_words_and_its_first_event_is_no_token(server: KnownServer, tmp_path: Path) -> None:
    raw = tmp_path / "raw.jsonl"
    done = Ran(
        server.url + "/v1", "--endpoint", "chat", "--concurrency", "1", "--requests", "1", "--prompt-tokens", "7",
        "--output-tokens", "4", "--no-ignore-eos", "--json", "--raw", str(raw),
    )  # fmt: skip
    assert done.code == 0 and done.figures[0]["prompt_tokens"] == 7
    assert len(json.loads(raw.read_text())["gaps"]) == 1
    assert all(each["path"] == "/v1/chat/completions" and "ignore_eos" not in each for each in server.asked)


def test_a_stream_that_ends_with_an_error_is_a_failure_and_nothing_else(server: KnownServer, tmp_path: Path) -> None:
    lengths, raw = tmp_path / "lengths.csv", tmp_path / "raw.jsonl"
    write_turns(lengths, [(0, 0, 8, 2, 0), (0, 1, 9, FAILS, 0), (0, 2, 9, REFUSED, 0)])
    done = Ran(
        server.url, "--concurrency", "1", "--lengths", str(lengths), "--requests", "3", "--raw", str(raw), "--json",
        "--ttft-limit", "60000",
    )  # fmt: skip
    assert done.code == 1
    assert (done.figures[0]["requests"], done.figures[0]["failures"], done.figures[0]["kept_share"]) == (1, 2, 0.3333)
    assert "the worker is gone" in done.err and "HTTP 503: no room" in done.err
    failures = [json.loads(line).get("failure") for line in raw.read_text().splitlines()]
    assert failures == [None, "the worker is gone", "HTTP 503: no room"]


def test_the_words_of_a_server_do_nothing_to_a_terminal(server: KnownServer) -> None:
    with pytest.raises(LaunchError) as refused:
        Ran(server.url, "--output-tokens", str(HOSTILE))
    assert "gone" in str(refused.value) and str(refused.value).isprintable() and len(str(refused.value)) < 500


def test_recorded_turns_share_the_beginning_of_their_conversation(server: KnownServer, tmp_path: Path) -> None:
    lengths = tmp_path / "lengths.csv"
    write_turns(lengths, [(0, 0, 8, 2, 0), (0, 1, 20, 4, 8), (1, 0, 3000, 2, 0), (1, 1, 5, 2, 0)])
    done = Ran(server.url, "--lengths", str(lengths), "--request-rate", "200", "--requests", "6", "--json")
    assert done.code == 0 and done.figures[0]["request_rate"] == 200
    prompts = sorted((each["prompt"] for each in islice(server.asked, 1, None)), key=len)
    # The turn longer than --longest was left out; the others came twice.
    assert [len(prompt) for prompt in prompts] == [5, 5, 8, 8, 20, 20]
    assert {tuple(prompt[:8]) for prompt in prompts[4:]} == {tuple(prompt) for prompt in prompts[2:4]}


@given(seed=st.integers(0, 9), count=st.integers(0, 300), vocabulary=st.sampled_from((101, 102, 356, 357, 40_000)))
def test_drawn_ids_are_those_of_the_library(seed: int, count: int, vocabulary: int) -> None:
    """Figures of equal seeds can be compared with those of earlier versions: not one draw more or less is made."""
    ours, theirs = random.Random(seed), random.Random(seed)
    assert random_ids(ours, count, vocabulary) == [theirs.randrange(100, vocabulary) for _ in range(count)]
    assert ours.getstate() == theirs.getstate()


def write_turns(file: Path, turns: list[tuple[int, ...]]) -> None:
    with file.open("w", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(["conversation", "turn", "prompt_tokens", "output_tokens", "shared_prefix_tokens"])
        writer.writerows(turns)


def test_two_servers_have_the_same_questions_and_only_their_own_key(
    server: KnownServer, other: KnownServer, tmp_path: Path
) -> None:
    picture, key = tmp_path / "bench.png", tmp_path / "key"
    key.write_text("k" * 40)
    key.chmod(0o600)
    done = Ran(
        server.url, "--compare", other.url, "--key", str(key), "--request-rate", "100,200", "--requests", "3",
        "--output-tokens", "2", "--png", str(picture), "--itl-limit", "60000", PONTIL_API_KEYS="e" * 40,
    )  # fmt: skip
    assert done.code == 0
    # Questions that come 5 ms apart may change places.
    assert sorted(each["prompt"] for each in server.asked) == sorted(each["prompt"] for each in other.asked)
    assert {each["key"] for each in server.asked} == {"Bearer " + "k" * 40}
    assert {each["key"] for each in other.asked} == {None}
    rows = done.out.splitlines()[2:]
    first, second = server.url.removeprefix("http://"), other.url.removeprefix("http://")
    assert [row.split("|")[1].strip() for row in rows] == [first, second, f"{second} / {first}"] * 2
    assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--find-rate"], "--find-rate measures one server by its limits"),
        (["--lengths", "/nowhere.csv"], "--lengths: /nowhere.csv cannot be read: No such file"),
        (["--raw", "/nowhere/raw"], "there is no folder /nowhere"),
        (["--compare", "http://127.0.0.1:1"], "did not answer"),
    ],
)
def test_a_mistake_is_one_sentence_before_anything_is_sent(
    server: KnownServer, arguments: list[str], sentence: str
) -> None:
    with pytest.raises((OptionError, LaunchError)) as refused:
        Ran(server.url, *arguments)
    assert sentence in str(refused.value)
    assert not server.asked


@pytest.mark.parametrize(
    ("library", "arguments", "sentence"),
    [("aiohttp", (), "bench sends its requests with aiohttp"), ("matplotlib", ("--png", "a.png"), "--png draws with")],
)
def test_a_missing_library_is_named_with_the_command(
    server: KnownServer, monkeypatch: pytest.MonkeyPatch, library: str, arguments: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(OptionError, match=rf"^{sentence}.* not installed: pip install 'pontil\[bench\]'$"):
        Ran(server.url, *arguments)
    assert not server.asked


@pytest.mark.parametrize("text", ["", "conversation,prompt_tokens\n1,2\n", "x"])
def test_a_file_without_turns_is_refused(server: KnownServer, tmp_path: Path, text: str) -> None:
    file = tmp_path / "turns.csv"
    file.write_text(text)
    with pytest.raises(OptionError, match="its first line must name conversation"):
        Ran(server.url, "--lengths", str(file))


@pytest.mark.parametrize(
    "content", [b"\xff\xfe\x00", b"a" * 200_000, b"HEADER\n0,1,\xff,1,0\n", b"HEADER\n0,1," + b"1" * 200_000]
)
def test_a_file_that_is_no_text_of_numbers_is_refused(server: KnownServer, tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "turns.csv"
    file.write_bytes(content.replace(b"HEADER", b"conversation,turn,prompt_tokens,output_tokens,shared_prefix_tokens"))
    with pytest.raises(OptionError, match=f"--lengths: {file} is no text of numbers and commas: "):
        Ran(server.url, "--lengths", str(file))


def test_a_search_finds_the_rate_and_says_so(server: KnownServer) -> None:
    done = Ran(server.url, "--find-rate", "--ttft-limit", "0.000001", "--requests", "1", "--request-rate", "500")
    assert done.code == 0 and "At no rate that was tried did 90% of the requests keep their limits." in done.out
    assert len(server.asked) == 1 + MOST_TRIALS


@given(start=st.floats(0.01, 1000), capacity=st.floats(0.01, 1000))
def test_a_search_ends_close_below_the_capacity(start: float, capacity: float) -> None:
    tried: list[float] = []

    def kept(rate: float) -> bool:
        tried.append(rate)
        return rate <= capacity

    found = highest_rate(start, kept)
    assert len(tried) <= MOST_TRIALS
    # Eight trials double or halve, and leave enough to come close.
    if 1 / 256 <= capacity / start <= 256:
        assert found is not None and found <= capacity <= found * CLOSE
    elif found is not None:
        assert found <= capacity


def timed(ttft: float, gaps: tuple[float, ...] = (0.02, 0.03, 1.0)) -> Timing:
    return Timing(0.0, ttft, sum(gaps) / len(gaps), ttft + sum(gaps), 1, len(gaps) + 1, gaps)


def test_goodput_counts_requests_that_keep_every_limit() -> None:
    outcomes = Outcomes([timed(0.1), timed(0.3), timed(0.1, (0.05, 0.05))], ["gone"], 2.0)
    assert figures_of(outcomes, Limits(ttft=200))["goodput_per_second"] == 1.0
    assert figures_of(outcomes, Limits(ttft=200, itl=40))["kept_share"] == 0.25
    assert figures_of(outcomes, Limits(tpot=60))["kept_share"] == 0.25
    assert "goodput_per_second" not in figures_of(outcomes, Limits())


def test_percentiles_are_the_nearest_rank() -> None:
    found = spread("x", [one / 1000 for one in range(1, 101)])
    assert found == {"x_median": 50.5, "x_p90": 90.0, "x_p99": 99.0}
    assert spread("x", [0.001]) == {"x_median": 1.0, "x_p90": 1.0, "x_p99": 1.0}
