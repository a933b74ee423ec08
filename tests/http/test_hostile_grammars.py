# SPDX-License-Identifier: Apache-2.0
"""The proxy and its streams survive any grammar."""

import json
import random
import subprocess
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import psutil
import pytest
from hostile_grammars import HostileRequest, by_regex, chains, mixture, oddities
from process_state import has_ended
from running_proxy import ask, heard, proxy
from scripted_site import HttpAnswer, site
from scripted_worker import DEADLINE, eventually, proper, silent

from pontil.runtime.grammar.processes.bounded_process import TOO_COMPLEX
from pontil.runtime.tokenizer.tokenizer import Tokenizer

FEW = ("definitions by ref", "definitions by properties", "r: {} {}", "R: ~{}")


def is_judged(answer: HttpAnswer) -> None:
    """Check that the grammar was refused with its parameter, or accepted and then failed for lack of a worker."""
    error = answer.json["error"]
    assert (answer.status == 503 and "no worker" in error["message"]) or (answer.status == 400 and error["param"]), (
        error
    )


def survives(process: "subprocess.Popen[str]", bodies: Sequence[tuple[str, HostileRequest]]) -> None:
    address = heard(process, "ready")["url"]
    for name, asked in bodies:
        is_judged(ask(address, asked))
        assert process.poll() is None, name


def test_long_chains_of_names_end_nothing(tmp_path: Path, tokenizer_folder: Path) -> None:
    """Each of these once crashed the proxy with SIGSEGV: the compiler's recursion overflowed the thread's stack."""
    with proxy(tmp_path, tokenizer_folder) as process:
        address = heard(process, "ready")["url"]
        for name, asked in chains():
            if name in FEW:
                answer = ask(address, asked)
                assert answer.status == 400 and TOO_COMPLEX in answer.json["error"]["message"], name
                assert answer.json["error"]["param"].startswith(tuple(asked))
                assert process.poll() is None


def test_mixtures_end_nothing(tmp_path: Path, tokenizer_folder: Path) -> None:
    source = random.Random(16)
    with proxy(tmp_path, tokenizer_folder) as process:
        survives(process, [(f"mixture {number}", mixture(source)) for number in range(12)])


@pytest.mark.long
def test_nothing_that_was_thought_of_ends_the_proxy(tmp_path: Path, tokenizer_folder: Path) -> None:
    source = random.Random()
    with proxy(tmp_path, tokenizer_folder) as process:
        survives(process, [*chains(), *oddities(15_000), *((str(n), mixture(source)) for n in range(400))])


def test_the_checker_ends_with_its_proxy(tmp_path: Path, tokenizer_folder: Path) -> None:
    """The checker process exits with its proxy, by SIGTERM or SIGKILL; before the first grammar there is none."""
    for way in ("TERM", "KILL"):
        with proxy(tmp_path, tokenizer_folder) as process:
            address = heard(process, "ready")["url"]
            assert ask(address, {}).status == 503 and not psutil.Process(process.pid).children()
            is_judged(ask(address, by_regex("a")))
            (checker,) = psutil.Process(process.pid).children()
            process.terminate() if way == "TERM" else process.kill()
            process.wait(DEADLINE)
            eventually(partial(has_ended, checker), "the checker's end")


@pytest.mark.parametrize("name", FEW[1:3])
def test_streams_go_on_beside_them(tmp_path: Path, tokenizer: Tokenizer, name: str) -> None:
    """Other grammars are accepted after them."""
    with site(tmp_path, tokenizer) as made:
        address, worker = f"127.0.0.1:{made.port}", made.worker(script=silent)
        connection = made.connect()
        connection.request("POST", "/v1/completions", json.dumps({"prompt": "a", "stream": True, "max_tokens": 2}))
        submit = worker.submits.get(timeout=DEADLINE)
        worker.say(worker.tokens(submit, 0, [40]))
        stream = connection.getresponse()
        assert stream.status == 200 and stream.readline()
        answer = ask(address, dict(chains())[name])
        assert answer.status == 400 and TOO_COMPLEX in answer.json["error"]["message"]
        worker.say(worker.tokens(submit, 1, [40], finish_reason="length", generated_tokens=2))
        assert stream.read().endswith(b"data: [DONE]\n\n")
        worker.script = proper
        assert ask(address, by_regex("[a-z]{3}")).status == 200
        connection.close()
