# SPDX-License-Identifier: Apache-2.0
"""A prefill and a decode worker of a quantized directory: the same answer alone, in company and after a failover."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from quantized_directory import FORMS, quantize
from served import launched, wait_for
from tiny_llama import write_tiny_llama

pytestmark = pytest.mark.long
TEXT = "The old lighthouse keeper climbed the stairs every night"
OPTIONS: dict[str, Any] = {"model": "model", "max_tokens": 40, "ignore_eos": True, "temperature": 0.9, "seed": 3}


@pytest.mark.parametrize("name", ["awq", "gptq-order"])
def test_a_launch_of_a_quantized_directory(tmp_path: Path, name: str) -> None:
    model = tmp_path / "model"
    write_tiny_llama(model, dtype="float16")
    quantize(model, *FORMS[name])
    with launched(tmp_path, "--model", str(model), "--prefill", "cpu:0", "--decode", "cpu:1") as served:
        expected = served.complete(TEXT, **OPTIONS)["choices"]
        with ThreadPoolExecutor(12) as pool:
            others = [pool.submit(served.complete, f"{number} {TEXT}", **OPTIONS) for number in range(11)]
            assert pool.submit(served.complete, TEXT, **OPTIONS).result()["choices"] == expected
            assert all(other.result()["choices"] for other in others)
        for worker in ("decode:0", "prefill:0"):
            first = served.living(worker)
            served.kill(worker)
            assert served.complete(TEXT, **OPTIONS)["choices"] == expected
            served.living(worker, after=first.pid)
            wait_for(served.is_ready, 60, "readiness")
            assert served.complete(TEXT, **OPTIONS)["choices"] == expected
        said = served.output.read_text().count("become bfloat16: the kernels do not have these types")
        assert said == (0 if name == "awq" else 4)
