# SPDX-License-Identifier: Apache-2.0
"""Requests that were recorded with an adapter which is another one now: a replay says so, and a gate goes by others."""

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from saying_sites import tokenizer_with
from scripted_site import MODEL, ScriptedSite, site
from scripted_worker import DEADLINE, proper, with_logits

from pontil.launcher.cli import cli
from pontil.launcher.receipts.gate import open_gate
from pontil.launcher.receipts.record_writer import RecordLimits, write_record
from pontil.runtime.config.proxy_config import FurtherModel
from pontil.runtime.tokenizer.tokenizer import Tokenizer

ADAPTERS = {"sql": "5a" * 32, "law": "1c" * 32}
OTHER = "77" * 32
HELLO: dict[str, Any] = {"kernels": "amx int8", "dtype": "bfloat16", "version": "1.2.3"}


def recorded(one: ScriptedSite, path: Path, *models: str) -> Path:
    """Return the record of a request of each of these models."""
    begun, limits = threading.Event(), RecordLimits(len(models), 1, 1 << 20, DEADLINE)
    given: tuple[Any, ...] = f"http://127.0.0.1:{one.port}", {}, path, limits, begun.set
    work = threading.Thread(target=write_record, args=given, daemon=True)
    work.start()
    assert begun.wait(DEADLINE)
    for model in models:
        assert one.complete(model=model, max_tokens=5).status == 200
    work.join(DEADLINE)
    return path


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory, tokenizer: Tokenizer) -> Iterator[ScriptedSite]:
    with site(tmp_path_factory.mktemp("site"), tokenizer, receipt_key="17" * 32, max_attempts=1) as made:
        made.worker("decode:0", adapters=ADAPTERS, **HELLO)
        yield made


def replayed(path: Path, one: ScriptedSite, *words: str) -> Result:
    return CliRunner().invoke(
        cli, ["replay", str(path), "--against", f"http://127.0.0.1:{one.port}", *words], standalone_mode=False
    )


def judged(path: Path, one: ScriptedSite, *workers: str) -> tuple[str, list[str]]:
    """Return the verdict of a gate on these workers, and what it tells beside it."""
    told: list[str] = []
    return open_gate(path, f"http://127.0.0.1:{one.port}", {}, DEADLINE, told.append).judge([*workers]), told


def test_a_replay_says_that_a_name_stands_for_another_adapter(
    first: ScriptedSite, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    path = recorded(first, tmp_path / "record", "sql", MODEL, "law")
    assert replayed(path, first).return_value == 0
    folder = tmp_path / "site"
    folder.mkdir()
    with site(folder, tokenizer, receipt_key="17" * 32, max_attempts=1) as one:
        worker = one.worker(adapters={"sql": OTHER}, **HELLO)
        made = replayed(path, one, "--json")
        found = json.loads(made.output)
        texts = {difference["text"] for difference in found["differences"]}
        assert made.return_value == 1 and {difference["kind"] for difference in found["differences"]} == {"adapter"}
        another, gone = "stands for another adapter than when this was recorded", "stands for no adapter any more"
        assert texts == {f"'sql' {another}", f"'law' {gone}"}
        assert (found["incomparable"], worker.submits.qsize()) == (2, 1), "nothing is computed for nothing"
        assert "1 of 1 requests were answered as recorded; 1 cannot be compared" in replayed(path, one).output


def test_a_gate_goes_by_what_can_be_compared(first: ScriptedSite, tmp_path: Path) -> None:
    """A worker of another revision begins with an adapter of its own, which is not what the other ones answer with."""
    path = recorded(first, tmp_path / "record", "sql", MODEL)
    only = recorded(first, tmp_path / "only", "sql", "sql")
    given: dict[str, Any] = {"draining": True, "adapters": ADAPTERS | {"sql": OTHER}, **HELLO}
    first.worker("decode:1", revision="next", **given)
    first.worker("decode:2", revision="wrong", script=with_logits, **given)
    verdict, told = judged(path, first, "decode:1")
    why = "1 cannot be compared, since 'sql' stands for another adapter than when this was recorded"
    assert (verdict, told) == ("", [f"decode:1: 1 of 1 requests were answered as recorded; {why}"])
    # Each of two is tried by what can be compared, whoever was sent it first.
    verdict, told = judged(path, first, "decode:1", "decode:0")
    assert verdict == "" and told[0].startswith("decode:1, decode:0: 2 of 2 requests")
    verdict, told = judged(path, first, "decode:2")
    assert "the logits of token 2 differ" in verdict and why in verdict and not told
    verdict, told = judged(only, first, "decode:1")
    assert verdict.startswith("nothing in the record tries decode:1; 2 cannot be compared") and not told
    assert judged(only, first, "decode:0")[0] == ""


def test_an_adapter_that_a_worker_lacks_is_refused_by_it_and_not_left_out(first: ScriptedSite, tmp_path: Path) -> None:
    """The name stands for what was recorded: who cannot answer with that is not right."""
    path = recorded(first, tmp_path / "record", "law", MODEL)

    def without_law(worker: Any, submit: Any) -> Iterator[Any]:
        if not submit.adapter:
            yield from proper(worker, submit)

    first.worker("decode:3", draining=True, revision="lacking", adapters=ADAPTERS, script=without_law, **HELLO)
    url = f"http://127.0.0.1:{first.port}"
    verdict = open_gate(path, url, {}, 1.0, lambda text: None).judge(["decode:3"])
    assert "it was not answered in time" in verdict


def test_an_adapter_that_nobody_can_load_is_another_one(first: ScriptedSite, tmp_path: Path) -> None:
    path = recorded(first, tmp_path / "record", "law", MODEL)
    book = first.proxy.adapters
    before = dict(book.book.changes)
    try:
        book.load("law", OTHER, "/nowhere")
        assert first.complete(model="law").status == 503
        verdict, told = judged(path, first, "decode:0")
        assert verdict == "" and "'law' stands for another adapter than when this was recorded" in told[0]
    finally:
        book.book.changes = before


def test_a_gate_leaves_out_what_is_of_other_models(
    first: ScriptedSite, tmp_path: Path, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """They have workers of their own, which may have another tokenizer; or no worker, in another launch."""
    other = tokenizer_with(tmp_path_factory.mktemp("other"), "{{ messages[0].content }}")
    further = (
        FurtherModel(
            name="other",
            model="/other",
            tool_call_parser="auto",
            reasoning_parser="auto",
            hide_end_token=False,
            adapter=(),
        ),
    )
    folder = tmp_path / "site"
    folder.mkdir()
    with site(folder, tokenizer, {"other": other}, further_models=further, receipt_key="17" * 32) as both:
        both.worker("decode:0", **HELLO)
        both.tokenizer = other
        both.worker("other:0", role="mixed", model="other", model_fingerprint="o", **HELLO)
        path = recorded(both, tmp_path / "record", "other", MODEL, "other")
        why = "2 cannot be compared, since it is of another model than its worker has"
        equal = "1 of 1 requests were answered as recorded"
        assert judged(path, both, "decode:0") == ("", [f"decode:0: {equal}; {why}"])
        verdict, told_then = judged(path, both, "other:0", "decode:0")
        assert verdict == "" and told_then[0].startswith("other:0, decode:0: ")
        only = recorded(both, tmp_path / "only", "other")
        assert judged(only, both, "decode:0")[0].startswith("nothing in the record tries decode:0; 1 cannot be")
        assert replayed(path, both).return_value == 0
    why = "2 cannot be compared, since it is of a model that is not here"
    assert judged(path, first, "decode:0") == ("", [f"decode:0: {equal}; {why}"])
