# SPDX-License-Identifier: Apache-2.0
"""The command `verify`, without a model: what it reads, its words, and its exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pontil.launcher.cli import cli
from pontil.runtime.receipts.signing import ReceiptSigner
from pontil.runtime.receipts.statement import ids_digest

SIGNER = ReceiptSigner(b"\x07" * 32)
TOKENS = [5, 6]


def receipt(**other: Any) -> dict[str, Any]:
    texts = ("request", "model", "model_fingerprint", "version", "kernels", "dtype", "kv_cache_dtype", "finish_reason")
    statement = dict.fromkeys(texts, "x") | {
        "receipt": 1, "id": "cmpl-1", "choice": 0, "revision": None, "tokenizer": "00" * 32, "top_logits": 8,
        "parameters": {"max_tokens": 2, "seed": "1"}, "prompt_tokens": 1, "completion_tokens": 2, "cached_tokens": 0,
        "prompt_sha256": ids_digest([3]), "tokens_sha256": ids_digest(TOKENS), "chain": "00" * 32,
    } | other  # fmt: skip
    return SIGNER.receipt(statement, TOKENS, [3]).to_json()


def run(path: Path, text: str, *words: str) -> Result:
    path.write_text(text)
    return CliRunner().invoke(cli, ["verify", str(path), *words], standalone_mode=False)


def stream_of(*events: Any) -> str:
    return "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"


FORMS = {
    "receipt": json.dumps(receipt()),
    "answer": json.dumps({"id": "cmpl-1", "choices": [], "receipt": receipt()}),
    "choices": json.dumps({"id": "cmpl-1", "receipt": [receipt(), receipt(choice=1)]}),
    "stream": stream_of({"id": "cmpl-1", "choices": []}, {"choices": [], "receipt": receipt()}, {"usage": {}}),
    "response": stream_of({"type": "response.completed", "response": {"receipt": receipt()}}),
    "lines": "".join(json.dumps(one) + "\n" for one in ({"response": "a"}, {"done": True, "receipt": receipt()})),
}


@pytest.mark.parametrize("form", FORMS)
def test_signatures_are_checked_in_every_form(tmp_path: Path, form: str) -> None:
    made = run(tmp_path / "file", FORMS[form], "--signature-only", "--key", SIGNER.public_key.hex())
    lines = made.output.splitlines()
    assert made.return_value == 0 and len(lines) == (2 if form == "choices" else 1), made.output
    assert all(line == f"equal   signed by {SIGNER.public_key.hex()}" for line in lines)
    made = run(tmp_path / "file", FORMS[form], "--signature-only", "--key", "00" * 32)
    assert made.return_value == 1 and made.output.startswith("DIFFER  it is signed by")


def test_an_answer_of_another_name_is_no_answer_of_this_receipt(tmp_path: Path) -> None:
    streamed = stream_of({"id": "cmpl-2", "choices": []}, {"choices": [], "receipt": receipt()})
    for text in (json.dumps({"id": "cmpl-2", "receipt": receipt()}), streamed):
        made = run(tmp_path / "file", text, "--signature-only")
        assert made.return_value == 1 and "this answer is 'cmpl-2'" in made.output


def test_what_was_changed_is_said_and_nothing_is_computed(tmp_path: Path) -> None:
    made = run(tmp_path / "file", json.dumps(receipt() | {"tokens": [5, 7]}))
    assert made.return_value == 1 and "they were changed" in made.output


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "no receipt"),
        ("{}", "pontil-receipt: 1"),
        ("[]", "no receipt"),
        ("[" * 100_000, "nested too deeply"),
        (json.dumps({"receipt": {"refused": "they left"}}), "no receipt"),
        (json.dumps({"receipt": {"statement": {"receipt": 2}}}), "not of version 1"),
        (stream_of({"choices": []}), "no receipt"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(tmp_path: Path, text: str, says: str) -> None:
    made = run(tmp_path / "file", text)
    error: Any = made.exception
    assert error.exit_code == 2 and says in error.message and "\n" not in error.message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    made = CliRunner().invoke(cli, ["verify", str(tmp_path / "none")], standalone_mode=False)
    error: Any = made.exception
    assert error.exit_code == 2 and "cannot be read" in error.message


def test_a_model_that_is_not_here_is_named(tmp_path: Path) -> None:
    made = run(tmp_path / "file", json.dumps(receipt()), "--model", str(tmp_path))
    error: Any = made.exception
    assert error.exit_code == 2 and "config.json" in error.message
