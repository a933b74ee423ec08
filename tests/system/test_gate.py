# SPDX-License-Identifier: Apache-2.0
"""A rollout stops by itself where a worker does not answer recorded requests as before, and no client notices."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from command_line import app
from disturbed import MODEL
from served import START_TIMEOUT, Served, launched, wait_for
from tiny_llama import tokenizer_config, write_json, write_tiny_llama

from pontil.launcher.cli import cli
from pontil.launcher.keys.receipt_key import receipt_seed
from pontil.launcher.options.options import read_environment
from pontil.launcher.receipts.record_writer import RecordLimits, write_record
from pontil.launcher.receipts.replay import load_record
from pontil.runtime.receipts.record import first_line, last_line
from pontil.runtime.receipts.signing import ReceiptSigner
from pontil.runtime.receipts.statement import ids_digest

LIMITS = RecordLimits(requests=2, one_in=1, size=1 << 20, seconds=120.0)
ASKED: list[dict[str, Any]] = [
    {"prompt": "Two and two is", "max_tokens": 6, "temperature": 0.8},
    {"prompt": "The old keeper", "max_tokens": 6, "n": 2},
]


@contextmanager
def recorded(served: Served, path: Path, model: str) -> Iterator[Path]:
    """Record what is asked meanwhile, which is ASKED."""
    begun = threading.Event()
    url = f"http://127.0.0.1:{served.port}"
    work = threading.Thread(target=lambda: write_record(url, {}, path, LIMITS, begun.set), daemon=True)
    work.start()
    assert begun.wait(60)
    for body in ASKED:
        assert served.request("POST", "/v1/completions", {"model": model} | body).status == 200
    work.join(60)
    yield path


def forged(path: Path) -> Path:
    """Write the record with another token in its last answer, signed by the launch's own key."""
    seed = receipt_seed(None, read_environment().cache_directory, is_needed=True)
    signer = ReceiptSigner(bytes.fromhex(str(seed)))
    requests = list(load_record(path).requests)
    answer = requests[-1].answers[-1]
    tokens = [*answer.receipt.tokens[:2], 1 + answer.receipt.tokens[2], *answer.receipt.tokens[3:]]
    statement = answer.receipt.statement | {"tokens_sha256": ids_digest(tokens)}
    object.__setattr__(answer, "receipt", signer.receipt(statement, tokens, answer.receipt.prompt))
    lines = [first_line(requests[0].recording, redacted=False)]
    lines += [signer.record_line(request, redacted=False) for request in requests]
    text = b"".join(lines)
    wrong = path.with_name("forged")
    wrong.write_bytes(text + last_line(len(requests), sha256(text).hexdigest()))
    return wrong


def state(served: Served, name: str) -> str:
    return str(served.topology()[name]["state"]).lower()


def test_a_drained_worker_serves_again_only_if_it_answers_as_recorded(small_pair: Served, tmp_path: Path) -> None:
    with recorded(small_pair, tmp_path / "record", MODEL) as record:
        wrong, port = forged(record), ("--port", str(small_pair.port))
    against = ("--against", f"http://127.0.0.1:{small_pair.port}")
    done = CliRunner().invoke(cli, ["replay", str(record), *against], standalone_mode=False)
    assert done.return_value == 0, (done.output, done.exception)
    assert app("drain", "decode:0", "--drain-timeout", "0.1", *port).returncode == 0
    try:
        refused = app("undrain", "decode:0", "--gate", str(wrong), *port)
        assert refused.returncode == 1 and "is tried" not in refused.stdout, refused.stdout + refused.stderr
        assert "decode:0 is refused: request" in refused.stderr and "token 2 is" in refused.stderr, refused.stderr
        assert "choice 1) at decode:0" in refused.stderr and "it stays drained" in refused.stderr
        assert state(small_pair, "decode:0") == "drained"
        assert small_pair.request("POST", "/v1/completions", {"model": MODEL} | ASKED[0]).status == 200
    finally:
        passed = app("undrain", "decode:0", "--gate", str(record), *port)
    assert passed.returncode == 0 and "decode:0 answers as recorded" in passed.stdout, passed.stdout + passed.stderr
    wait_for(lambda: state(small_pair, "decode:0") == "ready", 30, "the worker at work")


@pytest.mark.long
def test_a_revision_with_a_fault_is_refused_and_an_equal_one_serves(tmp_path: Path) -> None:
    """The new workers join the proxy of the old one, which serves a stream meanwhile."""
    for seed, name in ((0, "old"), (1, "faulty"), (0, "retold")):
        write_tiny_llama(tmp_path / name, seed=seed)
    write_json(tmp_path / "retold" / "tokenizer_config.json", tokenizer_config() | {"chat_template": "another"})
    kinds_of = {"old": set[str](), "faulty": {"logits"}, "retold": {"tokenizer"}}
    common = ("--role", "mixed", "--served-model-name", "tiny", "--kv-cache-memory", "8MiB", "--share-devices")
    joins = ("--join", f"ipc://{tmp_path}/control", "--hold", *common)
    control = ("--control", f"ipc://{tmp_path}/control")
    for name in ("one", "two", "three", "four"):
        (tmp_path / name).mkdir()
    with launched(tmp_path / "one", *common, *control, "--model", str(tmp_path / "old")) as served:
        with recorded(served, tmp_path / "record", "tiny") as record:
            url = f"http://127.0.0.1:{served.port}"
        long: list[Any] = []
        body = {"model": "tiny", "prompt": "a", "max_tokens": 400, "ignore_eos": True}
        asking = threading.Thread(target=lambda: long.append(served.stream("/v1/completions", body)))
        asking.start()
        for folder, model, number in (("two", "faulty", "1"), ("three", "old", "2"), ("four", "retold", "3")):
            words = ("--model", str(tmp_path / model), "--revision", f"r{number}", "--first-number", number)
            name, is_good = f"mixed:{number}", model == "old"
            with launched(tmp_path / folder, *joins, *words, ready=False) as made:
                wait_for(partial(is_there, served, name), START_TIMEOUT, name)
                found = app("replay", str(record), "--against", url, "--revision", f"r{number}", "--json")
                kinds = {difference["kind"] for difference in json.loads(found.stdout)["differences"]}
                assert (found.returncode, kinds) == (0 if is_good else 1, kinds_of[model]), found.stdout
                words = ("undrain", name, "--gate", str(record), "--pid", str(made.process.pid))
                assert app(*words).returncode == 2, "where clients are served has to be said"
                done = app(*words, "--url", url)
                assert done.returncode == (0 if is_good else 1), done.stdout + done.stderr
                said = {"faulty": "the logits of token 0 differ", "retold": "another tokenizer or chat template"}
                assert said.get(model, "") in done.stderr, done.stderr
                answers = {ask["system_fingerprint"] for ask in (ask_plainly(served) for _ in range(8))}
                assert len(answers) == 1, "a refused release serves nobody, and an equal one is the same model"
        asking.join(120)
        assert long and sum("choices" in event and bool(event["choices"]) for event in long[0]) > 0


def is_there(served: Served, name: str) -> bool:
    return "load" in served.topology().get(name, {})


def ask_plainly(served: Served) -> dict[str, Any]:
    reply = served.request("POST", "/v1/completions", {"model": "tiny", "prompt": "hi", "max_tokens": 2})
    assert reply.status == 200
    answer: dict[str, Any] = reply.json()
    return answer
