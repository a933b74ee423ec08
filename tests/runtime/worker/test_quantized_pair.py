# SPDX-License-Identifier: Apache-2.0
"""Workers of a quantized directory: a pair gives the tokens of one worker, in bfloat16 whatever its file names."""

import logging
from pathlib import Path

import pytest
from architectures import hugging_model
from mxfp4_directory import EVEN, write_mxfp4
from quantized_directory import FORMS, quantize
from tiny_llama import write_tiny_llama
from workers import ScriptedProxy, greedy, open_worker, prompt

from pontil.runtime.loaders.checkpoint import open_checkpoint

TOKENS = 12
BECOME = "whole numbers of 4 bits in groups of 32 inputs in an order of their own (act-order) become bfloat16"


@pytest.mark.parametrize(("name", "says"), [("awq", ""), ("gptq-order", BECOME), ("fp8", ""), ("mxfp4", "")])
def test_a_pair_says_what_one_worker_says(
    proxy: ScriptedProxy, tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str, says: str
) -> None:  # C16
    folder = tmp_path / "model"
    sizes = write_tiny_llama(folder, dtype="float16")
    if name == "mxfp4":
        write_mxfp4(hugging_model("gpt_oss", EVEN | {"vocab_size": sizes.vocab_size}), folder, "bfloat16")
    else:
        quantize(folder, *FORMS[name])
    with caplog.at_level(logging.INFO):
        workers = [open_worker(folder, tmp_path, f"{role}:0", role) for role in ("prefill", "decode", "mixed")]
    prefill, decode, plain = workers
    unpacked = [line for line in caplog.messages if "the kernels do not have these types" in line]
    assert len(unpacked) == (3 if says else 0) and all(says in line for line in unpacked)
    assert all(worker.machine.dtype == "bfloat16" for worker in workers)
    has_levels = open_checkpoint(folder).has_levels
    assert all(worker.machine.kernels.endswith(" gguf") == has_levels for worker in workers)
    proxy.admit(*workers)
    proxy.submit(plain, "plain", prompt(40), greedy(TOKENS))
    proxy.submit_pair(prefill, decode, "split", prompt(40), greedy(TOKENS))
    proxy.turn_until(lambda: all(one in proxy.answers and proxy.answers[one].ended(1) for one in ("plain", "split")))
    assert proxy.answers["split"].choice(0) == proxy.answers["plain"].choice(0) and not proxy.answers["split"].failures
