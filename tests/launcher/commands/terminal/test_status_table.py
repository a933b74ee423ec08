# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest

from pontil.launcher.commands.terminal.status_table import (
    SHOWN_KEYS,
    class_table,
    duration,
    key_table,
    prompt_table,
    size,
    table,
)

READY: dict[str, Any] = {
    "name": "decode:0", "role": "decode", "pid": 1234, "state": "READY", "device": "cuda:0", "restarts": 2,
    "uptime_seconds": 3725, "rss_bytes": 3 << 30, "cpu_percent": 99.6, "gpu_bytes": 70 << 30,
    "load": {"in_flight": 3, "running": 2, "waiting": 1, "free_blocks": 9},
    "last_death": {"cause": "signal", "reason": "was killed by SIGKILL", "seconds_ago": 3730, "lines": []},
}  # fmt: skip
DEAD: dict[str, Any] = {
    "name": "prefill:10", "role": "prefill", "pid": None, "state": "GIVEN_UP", "device": "cpu", "restarts": 5,
    "reason": "failed: no\x1b[31m such\nmodel",
    "last_death": {"cause": "failed", "reason": "failed: no such model", "seconds_ago": 7, "lines": ["x"]},
}  # fmt: skip
JOINED: dict[str, Any] = {"name": "mixed:0", "role": "mixed", "pid": 9, "state": "READY", "device": "cpu"}


def test_columns_are_aligned_and_tell_everything() -> None:
    heading, ready, dead = table([READY, DEAD])
    assert ready == (
        "decode:0    ready     cuda:0  1234  1 h 02 min         2  100 %  3.0 GiB    70.0 GiB  "
        "2 running, 1 waiting  1 h 02 min ago it was killed by SIGKILL"
    )
    assert dead.startswith("prefill:10  given up  cpu  ") and dead.endswith("failed: no [31m such model")
    for name, text in (("STATE", "ready"), ("DEVICE", "cuda:0"), ("LOAD", "2 running"), ("REASON", "1 h 02 min ago")):
        assert heading.index(name) == ready.index(text)
    for name, text in (("PID", "1234"), ("RESTARTS", " 2"), ("CPU", "100 %"), ("GPU MEMORY", "70.0 GiB")):
        assert heading.index(name) + len(name) == ready.index(text) + len(text)
    assert dead.index("failed") == heading.index("REASON")


def test_a_worker_of_several_ranks_has_a_line_for_each() -> None:
    ranks = [
        {"rank": 0, "name": "decode:0", "device": "cpu:0", "state": "ready", "pid": 1234, "rss_bytes": 1 << 30},
        {"rank": 1, "name": "decode:0+1", "device": "cpu:1", "state": "starting", "pid": 1235, "rss_bytes": 2 << 30},
    ]
    _, worker, first, second, other = table([READY | {"device": "cpu:0+cpu:1", "ranks": ranks}, JOINED])
    assert worker.split()[:4] == ["decode:0", "ready", "cpu:0+cpu:1", "1234"] and "3.0 GiB" in worker
    assert first.split() == ["decode:0", "rank", "0", "ready", "cpu:0", "1234", "1.0", "GiB"]
    assert second.split() == ["decode:0", "rank", "1", "starting", "cpu:1", "1235", "2.0", "GiB"]
    assert other.split()[0] == "mixed:0"


def test_columns_without_anything_are_left_out() -> None:
    heading, row = table([JOINED | {"load": {"running": 0, "waiting": 0}}])
    assert heading.split() == ["NAME", "STATE", "DEVICE", "PID", "LOAD"] and row.split()[-1] == "idle"
    assert table([]) == []


def test_one_that_waits_tells_for_how_long() -> None:
    waiting = DEAD | {"state": "BACKOFF", "reason": "was killed by SIGKILL", "starts_in_seconds": 8}
    assert table([waiting])[1].endswith("backoff  cpu            5  was killed by SIGKILL; starts again in 8 s")


def test_a_role_that_the_name_does_not_tell_is_shown() -> None:
    heading, switched, other = table([READY | {"role": "prefill"}, JOINED])
    assert heading.split()[:3] == ["NAME", "ROLE", "STATE"]
    assert switched.split()[:3] == ["decode:0", "prefill", "ready"] and other.split()[:2] == ["mixed:0", "ready"]
    _, stage, mixed = table([READY | {"name": "talker-decode:0", "role": "decode"}, JOINED | {"name": "talker:0"}])
    assert stage.split()[:2] == ["talker-decode:0", "ready"] and mixed.split()[:2] == ["talker:0", "mixed"]


@pytest.mark.parametrize("width", [1, 10, 40, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    whole = table([READY, DEAD])
    for line, full in zip(table([READY, DEAD], width), whole, strict=True):
        assert len(line) <= width and (line == full or (line.endswith("…") and full.startswith(line[:-1])))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (59, "59 s"), (60, "1 min 00 s"), (3599, "59 min 59 s"), (3600, "1 h 00 min"), (86400, "1 d 0 h")],
)
def test_durations(seconds: int, text: str) -> None:
    assert duration(seconds) == text


def test_sizes() -> None:
    assert [size(None), size(0), size(5 << 20), size(2**30 - 1), size(2**30)] == [
        "", "0 MiB", "5 MiB", "1024 MiB", "1.0 GiB"
    ]  # fmt: skip


def test_keys_have_a_table_of_their_prompts() -> None:
    found = {"token": 41, "of": 8210, "part": "system", "message": 0}
    alice = {"key": "alice", "prompts": 12, "prompt_tokens": 9000, "cached_tokens": 4500, "difference": found}
    bob = {"key": "bob", "prompts": 0, "prompt_tokens": 0, "cached_tokens": 0, "difference": None}
    empty, heading, first, second = prompt_table([alice, bob])
    assert (empty, heading.split()) == ("", ["KEY", "PROMPTS", "TOKENS", "CACHED", "LAST", "DIFFERENCE"])
    assert first.split() == [
        "alice",
        "12",
        "9000",
        "50",
        "%",
        *["token", "41", "of", "8210,", "system,", "message", "0"],
    ]
    assert second.split() == ["bob", "0", "0"] and prompt_table([]) == []
    assert len(prompt_table([alice] * 99)) == SHOWN_KEYS + 2


def test_keys_are_shown_by_class_where_there_are_any() -> None:
    row = {"key": "-", "class": "standard", "share": 1.0, "requests": 3, "tokens": 70, "running": 0, "waiting": 0}
    assert key_table([row]) == []
    lines = [line.split() for line in key_table([row | {"key": "alice", "class": "batch", "share": 2.5}, row])]
    assert lines[1:] == [
        ["KEY", "CLASS", "SHARE", "REQUESTS", "TOKENS", "RUNNING", "WAITING"],
        ["alice", "batch", "2.5", "3", "70", "0", "0"], ["-", "standard", "1", "3", "70", "0", "0"],
    ]  # fmt: skip


def test_classes_are_shown_once_there_are_others_than_the_standard_one() -> None:
    rows = [{"class": word, "running": 0, "waiting": 2 * (word == "standard")} for word in ("standard", "batch")]
    assert class_table(rows) == []
    rows[1]["running"] = 1
    assert [line.split() for line in class_table(rows)] == [
        [], ["CLASS", "RUNNING", "WAITING"], ["standard", "0", "2"], ["batch", "1", "0"],
    ]  # fmt: skip
