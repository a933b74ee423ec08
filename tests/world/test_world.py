# SPDX-License-Identifier: Apache-2.0
"""The whole system from seeds, in virtual time: special shapes of it hold, and faults of the past are found.

Most seconds of each run are imports.
"""

import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import past_faults
import pytest
from checks import nobody_waits_past_a_deadline
from clients import ClientTry
from simulation import simulated

ROOT = Path(__file__).resolve().parents[2]
# That the default seeds hold, of which some have workers of one kind and some have ranks, is in test_seeds.py.
LONG = pytest.mark.long
# A seed in which one of them has the server's key, when it has two hosts with keys.
STRANGERS_SEEN = 1
PAIR, RANKS = ("--prefill-ranks", "1", "--decode-ranks", "1"), ("--prefill-ranks", "2", "--decode-ranks", "2")


@LONG
def test_workers_of_one_kind_and_a_proxy_alone_hold() -> None:
    sizes = {"prefill": 0, "decode": 0, "mixed": 2, "proxies": 1, "requests": 20, "faults": 2, "changes": 1}
    code, said = simulated("--seeds", "1", *(f"--{name}={count}" for name, count in sizes.items()))
    assert code == 0, "\n".join(said)


@pytest.mark.parametrize(
    ("name", "seed", "requests"),
    [
        ("prefix-key-without-its-parent", 1, "8"), pytest.param("cancels-are-dropped", 5, "20", marks=LONG),
        pytest.param("epoch-stays-when-blocks-are-freed", 4, "20", marks=LONG),
    ],
)  # fmt: skip
def test_a_past_fault_is_found_and_shrunk(name: str, seed: int, requests: str) -> None:
    few = ("--requests", requests, "--faults", "2", "--changes", "0")
    code, said = simulated("--seeds", str(seed), *PAIR, *few, "--past", name)
    assert code == 1 and re.match(rf"seed {seed} step \d+: \w+: ", said[0]), said
    assert any(re.fullmatch(rf"  seed {seed}: \d of its 2 faults show it:", line) for line in said)


@LONG
def test_a_past_fault_of_ranks_is_found() -> None:
    """It shows without any fault of the seed."""
    few = ("--prefill-ranks", "1", "--decode-ranks", "2", "--requests", "20", "--faults", "0", "--changes", "0")
    code, said = simulated("--seeds", "1", *few, "--past", "plans-without-news-are-not-answered")
    assert code == 1 and "every_plan_is_carried_out_and_answered" in said[0], said


@LONG
def test_an_answer_stays_with_its_release_whoever_continues_it() -> None:
    """A proxy dies before it has recorded the first tokens, and the next one knows workers of the other one only."""
    code, said = simulated("--seeds", "41", "--kinds", "silence,cut,kill", "--faults", "8")
    assert code == 0, "\n".join(said)


@LONG
def test_a_release_is_waited_for_whose_last_worker_was_dead_when_its_launch_ended() -> None:
    """The proxies could not be told that none will come."""
    sizes = {"prefill": 0, "decode": 0, "mixed": 1, "proxies": 1, "changes": 4, "faults": 10}
    given = (*(f"--{name}={count}" for name, count in sizes.items()), "--kinds", "kill twice,oom")
    code, said = simulated("--seeds", "58", *given)
    assert code == 0, "\n".join(said)


def test_only_what_a_release_began_may_wait_for_its_workers() -> None:
    """Any other call that hangs after such a launch has ended is found."""
    tries = [[ClientTry.begin(f"c{number}-0", 10.0, "proxy", 1)] for number in (1, 11)]
    calls = [
        SimpleNamespace(tries=each, wish=SimpleNamespace(number=number), began=10.0, ended_at=60.0, outcome="done")
        for number, each in zip((1, 11), tries, strict=True)
    ]
    world, made = SimpleNamespace(time=70.0, salted={"c11-0-4b9586c8#0"}), SimpleNamespace(over_at=30.0)
    run: Any = SimpleNamespace(calls=calls, world=world, made=made, site=SimpleNamespace(unsaid_at=20.0, world=world))
    assert list(nobody_waits_past_a_deadline(run)) == ["client 1 waited 30.0 s after the last fault"]


@LONG
def test_streams_outlive_the_restart_of_a_proxy_while_the_others_are_down() -> None:
    code, said = simulated("--seeds", "4", "--kinds", "cut,kill,kill twice,oom,stop", "--faults", "10")
    assert code == 0, "\n".join(said)


@LONG
def test_ranks_that_begin_again_while_a_network_flaps_meet() -> None:
    """Their link is a socket file: it ends with a process, and never loses a greeting."""
    code, said = simulated(
        "--seeds", "3", *RANKS, "--kinds", "cut,power cut", "--faults", "12", "--requests", "20", "--changes", "0",
        "--hosts", "1",
    )  # fmt: skip
    assert code == 0, "\n".join(said)


@LONG
@pytest.mark.parametrize(
    ("file", "line", "other"),
    [
        ("runtime/wire/links/context.py", '[b"200", b"OK"] if ours else', '[b"200", b"OK"] if True else'),
        ("runtime/transfer/grants.py", "hmac.compare_digest(grant.stamp(request), stamp) and proper", "proper"),
    ],
    ids=["an authenticator", "grants"],
)  # fmt: skip
def test_strangers_are_found_who_are_let_in(
    file: str, line: str, other: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (found,) = [text for text in (ROOT / file).read_text().splitlines() if line in text]
    patch = f"--- a/{file}\n+++ b/{file}\n@@ -1 +1 @@\n-{found}\n+{found.replace(line, other)}\n"
    (tmp_path / "open.patch").write_text(patch)
    monkeypatch.setattr(past_faults, "PAST", tmp_path)
    given = ("--hosts", "2", "--keys", "1", "--first")
    code, said = past_faults.run_past("open", tmp_path, range(STRANGERS_SEEN, STRANGERS_SEEN + 1), given)
    assert code == 1 and "strangers_are_not_heard" in said, said


@pytest.mark.parametrize("name", past_faults.names())
def test_a_past_fault_applies_to_todays_code(name: str) -> None:
    texts = past_faults.patched(name)
    assert texts
    for file, text in texts.items():
        assert text != (ROOT / file).read_text()
        compile(text, file, "exec")


def test_a_past_fault_that_applies_no_more_is_said_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patch = "--- a/app.py\n+++ b/app.py\n@@ -1 +1 @@\n-what was never there\n+what is\n"
    (tmp_path / "tests/world/past").mkdir(parents=True)
    (tmp_path / "tests/world/past/old.patch").write_text(patch)
    (tmp_path / "app.py").write_text("something else\n")
    monkeypatch.setattr(past_faults, "ROOT", tmp_path)
    monkeypatch.setattr(past_faults, "PAST", tmp_path / "tests/world/past")
    with pytest.raises(
        past_faults.UnusablePatchError, match=r"^tests/world/past/old\.patch applies no more, .* app\.py"
    ):
        past_faults.patched("old")
    with pytest.raises(past_faults.UnusablePatchError, match="there is no past fault other"):
        past_faults.patched("other")
