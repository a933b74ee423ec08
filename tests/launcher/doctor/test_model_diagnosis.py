# SPDX-License-Identifier: Apache-2.0
"""Findings about models from facts."""

from typing import Any

import pytest

from pontil.launcher.doctor.finding import Finding
from pontil.launcher.doctor.model_diagnosis import judge_models

FORM = {"bits": 16, "group": None, "block_bytes": None, "table": None, "floats": False, "own_order": False}
TAKEN = {
    "weights": 1 << 30, "read": 1 << 29, "kv": 1 << 28, "tokens": 8192, "token_bytes": 1 << 15, "quantization": "none",
    "dtype": "bfloat16", "form": FORM,
}  # fmt: skip
TEMPLATE = {"is_there": True, "failure": None, "writes": True, "tools": True}
SPEEDS = {"step": 0.1, "prompt": 0.01, "layers": 1, "cores": 2, "kernels": "the kernels avx2"}
FACTS: dict[str, Any] = {
    "name": "m", "faults": {}, "architecture": "llama", "layers": 2, "numbers": 5 * 10**8, "used": 5 * 10**8,
    "vocabulary": 300, "context": 4096, "ends": [2], "unpacked": [], "taken": TAKEN, "workers": 1, "template": TEMPLATE,
    "speeds": SPEEDS, "behind": 4096, "context_bytes": 1 << 29,
}  # fmt: skip


def judged(**changes: Any) -> dict[str, Finding]:
    return {one.subject: one for one in judge_models([FACTS | changes])}


def test_a_model_that_is_served() -> None:
    found = judged()
    assert list(found) == ["model", "chat template", "model memory", "model speed"]
    assert all(one.state == "fine" for one in found.values())
    assert "llama, 2 layers, 500.0 million weights, most of them bfloat16" in found["model"].found
    assert "8192 tokens, which are 2 streams of 4096" in found["model memory"].found
    said = found["model speed"].found
    assert "about 10 tokens a second, and 5 behind 4096, and prompts 100 a second" in said
    assert "by steps of its first 1 layers on 2 cores with the kernels avx2; a token reads 512.0 MiB" in said


@pytest.mark.parametrize(
    ("changes", "subject", "state", "words"),
    [
        ({"template": TEMPLATE | {"is_there": False}}, "chat template", "warning", "none"),
        ({"template": TEMPLATE | {"failure": "it fails"}}, "chat template", "warning", "it fails"),
        ({"template": TEMPLATE | {"writes": False}}, "chat template", "warning", "does not write"),
        ({"template": TEMPLATE | {"tools": False}}, "chat template", "fine", "without tools"),
        ({"ends": []}, "model", "warning", "no end token"),
        ({"used": 10**8}, "model", "fine", "a token uses 100.0 million"),
        ({"taken": TAKEN | {"quantization": "gguf"}, "unpacked": ["x"]}, "model", "warning", "x become bfloat16"),
        ({"context": 9000}, "model memory", "warning", "not its longest context of 9000"),
        ({"speeds": SPEEDS | {"layers": 2}}, "model speed", "fine", "by steps of all layers"),
        ({"speeds": None}, "model speed", "fine", "no estimate: nothing is measured of GPUs"),
    ],
)
def test_a_fact_has_one_finding(changes: dict[str, Any], subject: str, state: str, words: str) -> None:
    finding = judged(**changes)[subject]
    assert (finding.state, words in finding.found) == (state, True), finding
    assert (finding.state == "fine") == (not finding.meaning) == (not finding.mend)


def test_faults_are_broken_and_what_can_be_fetched_is_absent() -> None:
    broken, absent, text = judge_models(
        [
            {"name": "a", "faults": {"weights": "cut off: fetch it again"}},
            {"name": "b/c", "faults": {}, "unfetched": True},
            {"name": "d", "faults": {}, "scores": True},
        ]
    )
    assert (broken.subject, broken.state) == ("a: weights", "broken")
    assert absent.state == "absent" and "`pontil pull b/c`" in absent.found
    assert text.state == "fine" and "scores" in text.found
