# SPDX-License-Identifier: Apache-2.0
"""A chat model and an embedding model behind one proxy, each with workers of its own; one of these is killed."""

import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from forked_program import run_program
from served import ROOT, Served, launched, wait_for
from tiny_llama import write_tiny_llama

from pontil.runtime.loaders.builtin import fetch
from pontil.runtime.loaders.builtin_models import BUILTINS

TEXTS = [
    f"the keeper lit lamp number {number}, and the sea was {'calm' if number % 2 else 'loud'}" for number in range(400)
]
PAGE = ROOT / "docs" / "guide" / "embeddings.md"
RELATED = ("A man is eating food.", "Someone eats a meal.", "The stock market fell today.")


def embed(served: Served, texts: list[str], **fields: Any) -> dict[str, Any]:
    answer: dict[str, Any] = served.request("POST", "/v1/embeddings", {"input": texts} | fields).json()
    assert "error" not in answer, answer
    return answer


def test_both_models_answer(both_models: Served) -> None:
    assert [one["id"] for one in both_models.get("/v1/models")["data"]] == ["small", "bert"]
    assert {name: row["role"] for name, row in both_models.topology().items()} == {
        "proxy": "proxy", "mixed:0": "mixed", "embed:0": "embed", "embed:1": "embed",
    }  # fmt: skip
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{both_models.port}/v1", api_key="none")
    found = client.embeddings.create(model="bert", input=TEXTS[:3], dimensions=8)
    assert [len(one.embedding) for one in found.data] == [8, 8, 8] and found.usage.prompt_tokens > 30
    assert both_models.complete("the sea", model="small", max_tokens=3)["usage"]["completion_tokens"] == 3


def moves_texts(served: Served, calm: dict[str, Any]) -> bool:
    """Check that the death of a worker at work changes nothing. Return whether texts were moved: all may have been
    computed before it."""

    def busy() -> bool:
        return asking.done() or served.topology()["embed:0"].get("load", {}).get("in_flight", 0) > 0

    before = served.metric('pontil_failovers_total{cause="died"}')
    with ThreadPoolExecutor(1) as threads:
        asking = threads.submit(embed, served, TEXTS * 5)
        wait_for(busy, 60, "work of embed:0")
        served.kill("embed:0")
        disturbed = asking.result(120)
    assert [one["embedding"] for one in disturbed["data"]] == [one["embedding"] for one in calm["data"]] * 5
    assert disturbed["usage"]["prompt_tokens"] == 5 * calm["usage"]["prompt_tokens"]
    return served.metric('pontil_failovers_total{cause="died"}') > before


def test_a_killed_worker_changes_no_bit(both_models: Served) -> None:  # C16
    calm = embed(both_models, TEXTS)
    assert any(moves_texts(both_models, calm) for _ in range(4))
    alone = [embed(both_models, [text])["data"][0]["embedding"] for text in TEXTS[:5]]
    assert alone == [one["embedding"] for one in calm["data"][:5]]
    both_models.living("embed:0")


def test_the_built_in_model_knows_what_texts_mean(tmp_path: Path) -> None:
    """The similarities are those of transformers' BertModel with the mean of its rows."""
    fetch(BUILTINS["all-minilm-l6-v2"], Path("~/.cache/pontil"))
    write_tiny_llama(tmp_path / "small")
    with launched(
        tmp_path, "--role", "mixed", "--mixed", "cpu:0", "--embed", "cpu:1", "--model", str(tmp_path / "small")
    ) as served:
        answer = embed(served, list(RELATED), model="all-minilm-l6-v2")
        (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
        script = tmp_path / "example.py"
        script.write_text(example.replace("127.0.0.1:8000", f"127.0.0.1:{served.port}"))
        done = run_program([str(script)])
    assert done.stdout.splitlines() == [f"0.76 {RELATED[1]}", f"-0.02 {RELATED[2]}", "23 tokens"], done.stderr
    vectors = np.array([one["embedding"] for one in answer["data"]])
    near, far = float(vectors[0] @ vectors[1]), float(vectors[0] @ vectors[2])
    assert near == pytest.approx(0.7614, abs=2e-3) and far == pytest.approx(-0.017, abs=2e-3)
    assert vectors.shape == (3, 384) and answer["usage"]["prompt_tokens"] == 23
