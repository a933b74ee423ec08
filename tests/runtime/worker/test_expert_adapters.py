# SPDX-License-Identifier: Apache-2.0
"""Two workers with adapters of experts, or of recurrent layers: the tokens of one worker alone, in any company."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tiny_adapters import write_some
from tiny_hybrid import write_tiny_hybrid
from tiny_latent import write_tiny_deepseek
from workers import ScriptedProxy, drawn, everyone_clean, open_worker, prompt

from pontil.runtime.models.config import ModelConfig

PARAMS, PROMPT, START = drawn(10), prompt(300), 137
# Without an adapter, with one, with another one, and with that from a position on.
ASKED = {"plain": ("", 0), "one": ("one", 0), "two": ("two", 0), "late": ("two", START)}
MODELS: dict[str, Callable[[Path], ModelConfig]] = {
    "mixture": partial(write_tiny_deepseek, by_kernels=False),
    "mixture by kernels": partial(write_tiny_deepseek, by_kernels=True),
    "hybrid by kernels": write_tiny_hybrid,
}


@pytest.mark.parametrize("what", MODELS)
def test_two_workers_make_the_tokens_of_one(proxy: ScriptedProxy, tmp_path: Path, what: str) -> None:
    model, by_kernels = tmp_path / "model", what.endswith("by kernels")
    adapters = write_some(tmp_path, MODELS[what](model))
    own: dict[str, Any] = {"kernels": "auto", "dtype": "bfloat16", "max_model_len": 512, "kv_cache_memory": 8 << 20}
    prefill, decode = (
        open_worker(model, tmp_path, f"{role}:0", role, adapter=adapters, **own) for role in ("prefill", "decode")
    )
    assert (prefill.machine.kernels != "torch") == by_kernels
    proxy.admit(prefill, decode)
    digests = {"": ""} | decode.machine.adapters.by_name
    fields: dict[str, dict[str, Any]] = {
        name: {"adapter": digests[one], "adapter_start": start} for name, (one, start) in ASKED.items()
    }
    alone = dict[str, list[int]]()
    for name, more in fields.items():
        proxy.submit(decode, f"{name} alone", PROMPT, PARAMS, **more)
        (answer,) = proxy.finish(f"{name} alone")
        alone[name] = answer.ids
    assert len(set(map(tuple, alone.values()))) == len(ASKED)
    for name, more in fields.items():
        half = {"request_id": name, "attempt": 0, "prompt": PROMPT, "sampling": PARAMS.to_wire(), "cache_salt": name}
        proxy.submit_halves(prefill, decode, half | more, half | more)
    for name, answer in zip(ASKED, proxy.finish(*ASKED), strict=True):
        assert not answer.failures and answer.ids == alone[name], name
    assert decode.decode.counts.complete == len(ASKED)
    everyone_clean(proxy)
