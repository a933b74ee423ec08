# SPDX-License-Identifier: Apache-2.0
"""Handoffs of a model with latent attention: the tokens of one worker alone, in the bytes of the latent."""

from pathlib import Path
from typing import Any

import pytest
from effort import by_default
from tiny_latent import write_tiny_deepseek
from workers import ScriptedProxy, drawn, everyone_clean, open_worker, prompt

LENGTH = 100


@pytest.mark.parametrize(
    ("by_kernels", "dtype", "cells", "connector", "bytes_of_a_number", "more"),
    by_default(
        {(False, "float32", "auto", "shm", 4, 0), (True, "bfloat16", "int8", "shm", 1, 4)},
        (
            (by_kernels, *case)
            for case in (
                ("float32", "auto", "shm", 4, 0), ("bfloat16", "auto", "tcp", 2, 0), ("bfloat16", "int8", "shm", 1, 4)
            )
            for by_kernels in (False, True)
        ),
    ),
)  # fmt: skip
def test_two_workers_make_the_tokens_of_one(
    proxy: ScriptedProxy, tmp_path: Path, dtype: str, cells: str, connector: str, bytes_of_a_number: int, more: int,
    by_kernels: bool,
) -> None:  # fmt: skip
    """Torch's operations are chosen for sizes that the kernels do not take."""
    write_tiny_deepseek(tmp_path / "model", by_kernels=by_kernels)
    settings: dict[str, Any] = {"dtype": dtype, "kv_cache_dtype": cells, "kv_connector": connector, "kernels": "auto"}
    prefill, decode = (
        open_worker(tmp_path / "model", tmp_path, f"{role}:0", role, **settings) for role in ("prefill", "decode")
    )
    assert (prefill.machine.kernels != "torch") == by_kernels
    proxy.admit(prefill, decode)
    proxy.submit_pair(prefill, decode, "split", prompt(LENGTH), drawn(12))
    proxy.submit(decode, "whole", prompt(LENGTH), drawn(12))
    split, whole = proxy.finish("split", "whole")
    assert split.ids == whole.ids and len(whole.ids) == 12
    everyone_clean(proxy)
    # 2 layers of one latent of 32 numbers and 8 or 16 rotated ones for each of 16 positions.
    blocks, row = -(-LENGTH // 16), (48 if by_kernels else 40) * bytes_of_a_number + more
    assert (decode.decode.counts.complete, decode.decode.counts.bytes) == (1, blocks * 2 * 16 * row)
