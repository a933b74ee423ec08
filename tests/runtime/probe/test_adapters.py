# SPDX-License-Identifier: Apache-2.0
"""Adapters that cannot be computed are found before a worker starts."""

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_adapters import write_adapter
from tiny_llama import write_tiny_llama

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.launcher import roles
from pontil.launcher.foundation.errors import RefusedError
from pontil.runtime.errors import AdapterError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.adapter_facts import adaptable_layers
from pontil.runtime.probe.adapters import check_adapters

CPU = [["cpu"]]


def test_an_adapter_is_checked_against_the_model_before_a_launch(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    shapes = adaptable_layers(read_config(tmp_path / "tiny"))
    layers = {
        name: LowRank(torch.ones(4, inputs), torch.ones(outputs, 4)) for name, (outputs, inputs) in shapes.items()
    }
    good = str(write_adapter(tmp_path / "good", layers))
    check_adapters({"good": good}, tmp_path / "tiny")
    check_adapters({}, tmp_path / "nothing")
    other = {name: LowRank(one.down, torch.ones(len(one.up) + 1, 4)) for name, one in layers.items()}
    wrong = str(write_adapter(tmp_path / "wrong", other))
    with pytest.raises(AdapterError, match="the adapter wrong is for another base: model.layers.0"):
        check_adapters({"good": good, "wrong": wrong}, tmp_path / "tiny")


def test_a_launch_with_an_impossible_adapter_ends_with_the_exit_code_of_a_mistake(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny", dtype="bfloat16")
    demand: dict[str, Any] = {
        "dtype": "auto", "kv_cache_dtype": "auto", "quantization": "none", "max_model_len": None,
        "kv_cache_memory": 1 << 20, "block_size": 16, "workers": CPU, "gpu_memory": {},
    }  # fmt: skip
    told = {
        "demands": {str(tmp_path / "tiny"): demand},
        "others": [],
        "adapters": {str(tmp_path / "tiny"): {"x": str(tmp_path / "none")}},
        "cache_dir": str(tmp_path),
    }
    with pytest.raises(RefusedError, match="is no adapter of PEFT: adapter_model.safetensors cannot be read"):
        roles.memory_of_workers(told)
    assert (AdapterError, 2) in roles.EXIT_CODES
