# SPDX-License-Identifier: Apache-2.0
"""The benchmark of drafts, with two tiny models: its sums, and its lines."""

import json
import sys
from pathlib import Path

import bench_drafts
import pytest
from tiny_llama import write_tiny_llama


def test_guesses_behind_a_wrong_one_are_not_counted() -> None:
    result = bench_drafts.DraftResult()
    for guessed, right in ((3, 3), (3, 1), (2, 0), (0, 0)):
        result.count(guessed, right)
    assert result.drafts == 3 and result.by_place == {0: [3, 2], 1: [2, 1], 2: [1, 1]}


def test_the_bound_is_that_of_the_costs() -> None:
    timings = bench_drafts.Timings(target={1: [1.0], 2: [1.0, 9.0, 1.0], 3: [3.0]}, draft=[0.5])
    always = bench_drafts.DraftResult(by_place={0: [4, 4]})
    never = bench_drafts.DraftResult(by_place={0: [4, 0]})
    assert bench_drafts.bound(timings, always) == pytest.approx(2 / 1.5)
    assert bench_drafts.bound(timings, never) == bench_drafts.bound(timings, bench_drafts.DraftResult()) == 1.0


def test_every_task_and_way_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tiny_llama(tmp_path / "target", num_layers=2)
    write_tiny_llama(tmp_path / "draft", num_layers=1)
    monkeypatch.setattr(bench_drafts, "TASKS", {name: texts[:1] for name, texts in bench_drafts.TASKS.items()})
    flags = ["--model", str(tmp_path / "target"), "--draft", str(tmp_path / "draft"), "--answer", "12", "--cores", "0"]
    monkeypatch.setattr(sys, "argv", ["bench_drafts.py", *flags, "--max-model-len", "512"])
    bench_drafts.main()
    costs, *lines = map(json.loads, capsys.readouterr().out.splitlines())
    assert set(costs["costs"]["target"]) >= {"1", "2", "9"} and costs["costs"]["draft"] > 0
    assert [(line["task"], line["way"]) for line in lines] == [
        (task, way) for task in bench_drafts.TASKS for way in bench_drafts.WAYS
    ]
    assert all(line["ms"] > 0 and line["right"] <= line["tried"] for line in lines if line["way"] != "none")
