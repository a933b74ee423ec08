# SPDX-License-Identifier: Apache-2.0
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.gguf.file import byte_size
from pontil.runtime.loaders.gguf.header import GgufTensor, read_header

KINDS = gguf.GGMLQuantizationType


@pytest.mark.parametrize("tied", [True, False])
def test_the_same_tensors_as_the_directory(tmp_path: Path, write_gguf: Any, tied: bool) -> None:
    config = write_tiny_llama(tmp_path / "hf", tie_word_embeddings=tied, rope_theta=1e5)
    checkpoint = open_checkpoint(write_gguf(tmp_path / "hf", config))
    assert checkpoint.config == config
    directory = dict(open_checkpoint(tmp_path / "hf").tensors())
    file = dict(checkpoint.tensors())
    assert sorted(file) == sorted(directory)
    for name, tensor in file.items():
        assert torch.equal(tensor, directory[name]), name


@pytest.mark.parametrize(
    ("kind", "error"), [(KINDS.F16, 0.01), (KINDS.BF16, 0.02), (KINDS.Q8_0, 0.05), (KINDS.Q4_1, 0.5)]
)
def test_quantized_tensors_come_close(
    tmp_path: Path, write_gguf: Any, kind: gguf.GGMLQuantizationType, error: float
) -> None:
    config = write_tiny_llama(tmp_path / "hf")
    directory = dict(open_checkpoint(tmp_path / "hf").tensors())
    for name, tensor in open_checkpoint(write_gguf(tmp_path / "hf", config, kind=kind)).tensors():
        assert tensor.dtype == (torch.bfloat16 if tensor.ndim > 1 else torch.float32)
        torch.testing.assert_close(tensor.float(), directory[name], atol=error, rtol=0.01)


def test_every_end_of_generation_is_found(tiny: Path, write_gguf: Any) -> None:
    path = write_gguf(tiny, read_config(tiny), tokenizer__ggml__eot_token_id=7, tokenizer__ggml__eom_token_id=2)
    assert read_config(path).eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"architecture": "mamba"}, "'mamba' is not known: this version runs llama"),
        ({"llama__rope__scaling__type": "longrope"}, "rotary positions \\(longrope\\)"),
        ({"llama__rope__scaling__type": "yarn"}, "not state llama.rope.scaling.original_context_length"),
        ({"llama__block_count": 2**31}, "2147483648 layers and holds"),
        ({"architecture": "qwen2", "qwen2__expert_count": 8}, "mixture of experts"),
        ({"llama__rope__dimension_count": 8}, "dimension_count is 8, its heads have 16"),
        ({"split__count": 3}, "is one of 3 files of a model: name them NAME-00001-of-00003.gguf and so on"),
        ({"llama__final_logit_softcapping": 30}, "states llama.final_logit_softcapping"),
        ({"llama__attention__head_count_kv": [2, 2]}, "llama.attention.head_count_kv as one number"),
        ({"architecture": "qwen3", "qwen3__attention__sliding_window": 8}, "not for which layers"),
        (
            {
                "architecture": "qwen3moe",
                "qwen3moe__expert_count": 5000,
                "qwen3moe__expert_used_count": 2,
                "qwen3moe__expert_feed_forward_length": 8,
            },
            "number of experts in a layer is 5000",
        ),
        ({"architecture": "gemma3"}, "does not state gemma3.attention.sliding_window"),
        ({"architecture": "gemma3", "gemma3__attention__sliding_window": 8}, r"lacks the tensors .*\.1\..*\.k_norm"),
        ({"drop": "blk.1.attn_q.weight"}, "lacks the tensor model.layers.1.self_attn.q_proj.weight"),
        ({"drop": "token_embd.weight"}, "no tensor token_embd.weight"),
    ],
)
def test_what_cannot_run_is_refused_by_name(tiny: Path, write_gguf: Any, changes: dict[str, Any], says: str) -> None:
    path = write_gguf(tiny, read_config(tiny), **changes)
    with pytest.raises(ModelError, match=says):
        open_checkpoint(path)


@pytest.mark.parametrize(
    ("stated", "windows"),
    [({}, (8, 8)), ({"pattern": 2}, (8, None)), ({"pattern": [False, True]}, (None, 8)), ({"pattern": [True]}, None)],
)
def test_layers_with_a_window(
    tiny: Path, write_gguf: Any, stated: dict[str, Any], windows: tuple[int | None, ...] | None
) -> None:
    facts = {f"gemma3__attention__sliding_window_{key}": value for key, value in stated.items()}
    path = write_gguf(tiny, read_config(tiny), architecture="gemma3", gemma3__attention__sliding_window=8, **facts)
    if windows is None:
        with pytest.raises(ModelError, match=r"sliding_window_pattern as one number"):
            read_config(path)
    else:
        assert read_config(path).windows == windows


def test_a_type_that_cannot_be_read_is_named() -> None:
    with pytest.raises(ModelError, match=r"blk\.0\.x is stored as NVFP4, .* reads F32, F16, BF16, Q4_0, .*, TQ2_0"):
        byte_size("blk.0.x", GgufTensor((4, 256), 40, 0))
    with pytest.raises(ModelError, match="not whole, aligned blocks of 32"):
        byte_size("blk.0.x", GgufTensor((4, 33), 8, 0))


def test_a_truncated_file_at_every_scale(tiny: Path, write_gguf: Any) -> None:
    path = write_gguf(tiny, read_config(tiny))
    content = path.read_bytes()
    header = read_header(path).size
    for kept in [*range(0, header, 97), header, len(content) - 64]:
        path.write_bytes(content[:kept])
        with pytest.raises(ModelError, match="fetch it again"):
            open_checkpoint(path)


def test_a_header_of_lies_is_refused(tiny: Path, write_gguf: Any) -> None:
    path = write_gguf(tiny, read_config(tiny))
    content = bytearray(path.read_bytes())
    for at in range(0, read_header(path).size, 61):
        path.write_bytes(content[:at] + b"\xff" * 8 + content[at + 8 :])
        try:
            for _ in open_checkpoint(path).tensors():
                pass
        except ModelError:
            continue


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="No such file"):
        open_checkpoint(tmp_path / "none.gguf")
