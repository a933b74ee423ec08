# SPDX-License-Identifier: Apache-2.0
"""Answers that follow a grammar are the same by one worker, two and a later attempt; compiling never blocks others."""

import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from effort import by_default
from tiny_llama import END_ID
from walks import follows
from workers import PromptWorker, ScriptedProxy, WorkerAnswer, drawn, everyone_clean, greedy, open_worker, prompt

from pontil.runtime.grammar.closing import SLACK
from pontil.runtime.grammar.grammar import Grammar, GrammarCompiler
from pontil.runtime.grammar.grammar_text import grammar_of_choices, grammar_of_regex, grammar_of_schema
from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.worker.generate import grammar_manager as grammar_desk
from pontil.runtime.worker.process.worker_request import key_of

ROOT = Path(__file__).resolve().parents[3]
Pair = tuple[PromptWorker, PromptWorker]
SHORT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 9},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2},
    },
    "required": ["name", "tags"],
    "additionalProperties": False,
}  # fmt: skip
JSON, WORDS, CHOICE = grammar_of_schema(SHORT), grammar_of_regex("([a-z]{1,6} )*"), grammar_of_choices(["yes", "no"])
KINDS: dict[str, SamplingParams] = {
    "greedy": greedy(60, grammar=JSON, logprobs=1),
    "drawn": drawn(60, grammar=JSON, seed=8),
    "choices": drawn(30, grammar=JSON, n=3, logprobs=0, top_k=40),
    "words": drawn(30, grammar=WORDS, min_tokens=8),
    "one of two": greedy(9, grammar=CHOICE, ignore_eos=True),
    "penalized": drawn(40, grammar=JSON, frequency_penalty=0.5, stop=("zz",)),
}


def ended(proxy: ScriptedProxy, n: int, *names: str) -> list[WorkerAnswer]:
    proxy.turn_until(lambda: all(name in proxy.answers and proxy.answers[name].ended(n) for name in names))
    return [proxy.answers[name] for name in names]


def told(answer: WorkerAnswer, n: int) -> dict[str, Any]:
    assert not answer.failures
    ends = sorted((frame.choice, frame.finish_reason) for frame in answer.frames if frame.finish_reason)
    return {
        "ids": [answer.choice(number) for number in range(n)], "ends": ends,
        "count": sum(frame.generated_tokens or 0 for frame in answer.frames),
    }  # fmt: skip


@pytest.mark.parametrize("kind", by_default({"choices", "words", "one of two", "penalized"}, KINDS))
def test_one_worker_two_and_a_later_attempt_say_the_same(
    proxy: ScriptedProxy, model: Path, tmp_path: Path, kind: str
) -> None:  # C16
    """The first token, which prefill samples, is included, and so are answers with drafts."""
    prefill = open_worker(model, tmp_path, "prefill:0", "prefill", speculative_tokens=3)
    decode = open_worker(model, tmp_path, "decode:0", "decode", speculative_tokens=3)
    plain = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(prefill, decode, plain)
    params = KINDS[kind]
    proxy.submit(plain, "plain", prompt(40), params)
    proxy.submit_pair(prefill, decode, "split", prompt(40), params)
    plainly, split = ended(proxy, params.n, "plain", "split")
    expected = told(plainly, params.n)
    assert told(split, params.n) == expected
    guide = GrammarCompiler(plain.machine.tokenizer, plain.machine.config.vocab_size).compile(str(params.grammar))
    for (choice, reason), ids in zip(expected["ends"], expected["ids"], strict=True):
        assert follows(guide.guide(frozenset({END_ID})), ids)
        if params.grammar == JSON and not params.stop:  # closed before the budget is used up
            assert json.loads(plain.machine.tokenizer.decode(ids))
            assert reason == ("stop" if len(ids) < params.max_tokens - SLACK else "length")
        else:
            assert reason == ("stop" if ids[-1] == END_ID else "length") or params.stop, choice
    delivered = [ids[: min(4, len(ids) - 1)] for ids in expected["ids"]]
    more: dict[str, Any] = {"attempt": 1, "delivered": delivered}
    proxy.submit(plain, "again", prompt(40), params, **more)
    proxy.submit_pair(prefill, decode, "again by two", prompt(40), params, **more)
    for answer in ended(proxy, params.n, "again", "again by two"):
        for choice, ids in enumerate(delivered):
            rest = {index: token for frame in answer.frames if frame.choice == choice
                    for index, token in enumerate(frame.ids, frame.index)}  # fmt: skip
            assert [*ids, *(rest[index] for index in sorted(rest) if index >= len(ids))] == expected["ids"][choice]
    everyone_clean(proxy)


def test_some_answers_end_by_themselves(proxy: ScriptedProxy, pair: Pair) -> None:
    """Guard of the test above, which would prove little if every answer were cut off."""
    proxy.submit(pair[0], "a", prompt(20), greedy(9, grammar=CHOICE, ignore_eos=True))
    (answer,) = proxy.finish("a")
    assert pair[0].machine.tokenizer.decode(answer.ids) in ("yes", "no")
    assert answer.ids[-1] == END_ID and answer.frames[-1].finish_reason == "stop"


@pytest.mark.parametrize("way", ["pair", "whole"])
@pytest.mark.parametrize("asked", [{"bad_token_ids": (END_ID,)}, {"allowed_token_ids": (9,)}], ids=["end", "beginning"])
def test_a_contradiction_is_a_failure_of_the_clients(
    proxy: ScriptedProxy, pair: Pair, way: str, asked: dict[str, Any]
) -> None:
    """The contradiction shows at the first token, which prefill samples, or at the last."""
    params = drawn(20, grammar=CHOICE, n=2, **asked)
    if way == "pair":
        proxy.submit_pair(*pair, "a", prompt(40), params)
    else:
        proxy.submit(pair[1], "a", prompt(40), params)
    (answer,) = proxy.finish("a")
    assert answer.failures[0].status == 400 and "bad_token_ids" in answer.failures[0].reason
    proxy.submit_pair(*pair, "b", prompt(40), greedy(5))
    assert proxy.finish("b")[0].failures == []
    everyone_clean(proxy)


@pytest.mark.parametrize("grammar", ["start: nothing", "", "start: <|no such|>"])
def test_what_cannot_be_compiled_is_refused(proxy: ScriptedProxy, pair: Pair, grammar: str) -> None:
    proxy.submit_pair(*pair, "a", prompt(40), greedy(5, grammar=grammar))
    (answer,) = proxy.finish("a")
    assert answer.failures[0].status == 400 and "cannot be used" in answer.failures[0].reason
    proxy.cancel(pair[0], "a")
    proxy.cancel(pair[1], "a")
    everyone_clean(proxy)


class HeldGrammar:
    """A compiler that waits until it is released."""

    def __init__(self, worker: PromptWorker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.compiled: list[str] = []
        self.gate = threading.Event()
        real = worker.grammars.compiler.compile

        def compile_later(text: str) -> Grammar:
            self.compiled.append(text)
            assert self.gate.wait(60)
            return real(text)

        monkeypatch.setattr(worker.grammars.compiler, "compile", compile_later)


def test_nobody_else_waits_for_a_grammar(proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = pair[1]
    held = HeldGrammar(worker, monkeypatch)
    proxy.submit(worker, "waits", prompt(20), greedy(9, grammar=CHOICE))
    proxy.submit(worker, "waits too", prompt(20), greedy(9, grammar=CHOICE))
    proxy.submit(worker, "leaves", prompt(20), greedy(9, grammar=CHOICE))
    proxy.submit(worker, "passes", prompt(20), greedy(9))
    proxy.finish("passes")
    assert not {"waits", "waits too"} & set(proxy.answers) and worker.load().waiting == 3
    proxy.cancel(worker, "leaves")
    proxy.turn_until(lambda: key_of("leaves", 0) not in worker.requests)
    held.gate.set()
    first, second = proxy.finish("waits", "waits too")
    assert first.ids == second.ids and held.compiled == [CHOICE], "and once for all"
    proxy.submit(worker, "later", prompt(20), greedy(9, grammar=CHOICE))
    assert proxy.finish("later")[0].ids == first.ids and held.compiled == [CHOICE]
    assert "leaves" not in proxy.answers


def test_waiting_for_a_grammar_has_an_end(
    proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:  # C14
    worker = pair[1]
    held = HeldGrammar(worker, monkeypatch)
    monkeypatch.setattr(grammar_desk, "COMPILE_TIMEOUT", 0.05)
    proxy.submit(worker, "a", prompt(20), greedy(9, grammar=CHOICE))
    (answer,) = proxy.finish("a")
    assert answer.failures[0].status == 503 and "compiled" in answer.failures[0].reason
    held.gate.set()
    proxy.turn_until(lambda: CHOICE in worker.grammars.kept)
    proxy.submit(worker, "b", prompt(20), greedy(9, grammar=CHOICE))
    assert proxy.finish("b")[0].failures == []


def test_grammars_are_kept_within_bounds(proxy: ScriptedProxy, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The most recently used ones stay (LRU)."""
    monkeypatch.setattr(grammar_desk, "MOST_KEPT", 2)
    grammars = [grammar_of_choices([text]) for text in "abc"]
    for name, number in (("0", 0), ("1", 1), ("2", 0), ("3", 2)):
        proxy.submit(pair[1], name, prompt(20), greedy(3, grammar=grammars[number]))
        proxy.finish(name)
    assert list(pair[1].grammars.kept) == [grammars[0], grammars[2]]


def test_a_model_without_an_end_cannot_follow_a_grammar(proxy: ScriptedProxy, pair: Pair) -> None:
    machine = pair[1].machine
    object.__setattr__(machine.config, "eos_token_ids", ())
    proxy.submit(pair[1], "a", prompt(20), greedy(3, grammar=CHOICE))
    (answer,) = proxy.finish("a")
    assert answer.failures[0].status == 400 and "no end token" in answer.failures[0].reason
    proxy.submit(pair[1], "b", prompt(20), greedy(9, grammar=CHOICE, stop_token_ids=(0,)))
    assert proxy.finish("b")[0].ids[-1] == 0, "a special token that the client names will do"


def test_closing_ends_the_thread(model: Path, tmp_path: Path) -> None:  # D5
    proxy = ScriptedProxy(tmp_path)
    worker = open_worker(model, tmp_path, "mixed:0", "mixed")
    proxy.admit(worker)
    proxy.submit(worker, "a", prompt(20), greedy(3, grammar=CHOICE))
    proxy.finish("a")
    thread = worker.grammars.wanted.thread
    assert thread.is_alive()
    everyone_clean(proxy)
    proxy.close()
    assert not thread.is_alive()


DEEP_STACK = """
import sys, threading
import app
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.worker.generate.grammar_manager import GrammarManager
class Small:
    vocab_size, special_ids = 256, frozenset()
    def token_bytes(self, number): return bytes([number])
done = threading.Event()
side = GrammarManager(GrammarCompiler(Small(), 256), done.set)
rules = [f"r{number}: r{number + 1}\\n" for number in range(5000)]
side.compile("".join(["start: r0\\n", *rules, 'r5000: "a"\\n']))
done.wait(60)
print(type(side.made.get()[1]).__name__)
side.close()
"""


def test_the_thread_has_more_stack_than_any_grammar_needs_that_was_let_in() -> None:
    """A grammar as large as this one, which the proxy never admits, compiles even if the default stack of threads is
    small."""
    shell = ["/bin/sh", "-c", 'ulimit -s 2048; exec "$0" -c "$1"', sys.executable, DEEP_STACK]
    ended = subprocess.run(shell, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout) == (0, "Grammar\n"), ended.stderr
