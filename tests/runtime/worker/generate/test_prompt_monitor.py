# SPDX-License-Identifier: Apache-2.0
"""Prompts without a first token: advancing ones are reported, those past their deadline are ended."""

from pathlib import Path

import pytest
from workers import PromptWorker, ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.worker.generate import worker as prompt_watch


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every turn check the prompts."""
    monkeypatch.setattr(prompt_watch, "LOOK_EVERY", 0.0)


@pytest.mark.usefixtures("watched")
def test_a_long_prompt_tells_how_far_it_is(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill")
    decode = open_worker(model, tmp_path, "decode:0", "decode")
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "pair", prompt(250), drawn(3))
    proxy.submit(decode, "whole", prompt(200), drawn(3))
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(1) for name in ("pair", "whole")))
    for name, worker, length in (("pair", prefill, 250), ("whole", decode, 200)):
        said = [one for one in proxy.progress if one.request_id == name]
        computed = [one.computed for one in said]
        # In steps of 64 tokens at most, and never twice the same.
        assert computed == sorted(set(computed)) and len(computed) >= 2 and computed[-1] < length
        assert {(one.sender, one.receiver, one.attempt) for one in said} == {(worker.incarnation, "proxy", 0)}
    everyone_clean(proxy)


@pytest.mark.usefixtures("watched")
def test_who_waits_until_the_deadline_is_let_go(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    worker = open_worker(model, tmp_path, "mixed:0", "mixed", max_num_seqs=1)
    proxy.admit(worker)
    proxy.submit(worker, "first", prompt(20), drawn(30), deadline=60.0)
    proxy.turn_until(lambda: "first" in proxy.answers)
    proxy.submit(worker, "late", prompt(20), drawn(3), deadline=0.0)
    proxy.submit(worker, "patient", prompt(20), drawn(3))
    # A continued answer has had its first token: the deadline does not apply to it.
    proxy.submit(worker, "moved", prompt(20), drawn(5), attempt=1, delivered=[[7]], deadline=0.0)
    names = ("first", "patient", "moved")
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(1) for name in names))
    (failure,) = proxy.answers["late"].failures
    assert failure.late and failure.status == 503 and "before its deadline" in failure.reason
    assert not any(proxy.answers[name].failures for name in names)
    everyone_clean(proxy)


@pytest.mark.usefixtures("watched")
def test_both_halves_that_find_no_room_are_let_go(proxy: ScriptedProxy, model: Path, tmp_path: Path) -> None:
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill")
    decode = open_worker(model, tmp_path, "decode:0", "decode", max_num_seqs=1)
    proxy.admit(prefill, decode)
    occupy(proxy, decode)
    proxy.submit_pair(prefill, decode, "late", prompt(30), drawn(3), deadline=0.0)
    proxy.turn_until(lambda: "late" in proxy.answers and len(proxy.answers["late"].failures) == 2)
    assert all(failure.late for failure in proxy.answers["late"].failures)
    proxy.turn_until(lambda: proxy.answers["long"].ended(1))
    everyone_clean(proxy)


def test_what_was_computed_of_a_prompt_that_was_given_up_is_found_again(
    proxy: ScriptedProxy, model: Path, tmp_path: Path
) -> None:
    """A client that retries does not start from the beginning."""
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(worker)
    proxy.submit(worker, "first", prompt(250), drawn(3), salt="one")
    proxy.turn_until(lambda: any(request.sequence.computed >= 128 for request in worker.requests.values()))
    proxy.cancel(worker, "first")
    everyone_clean(proxy)
    proxy.submit(worker, "again", prompt(250), drawn(3), salt="one")
    (answer,) = proxy.finish("again")
    assert answer.frames[0].cached_tokens is not None and answer.frames[0].cached_tokens >= 128
    everyone_clean(proxy)


def occupy(proxy: ScriptedProxy, worker: PromptWorker) -> None:
    proxy.submit(worker, "long", prompt(20), drawn(60))
    proxy.turn_until(lambda: "long" in proxy.answers)
