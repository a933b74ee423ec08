# SPDX-License-Identifier: Apache-2.0
"""GGUF files of large models without their data: a header, and a hole as large as the tensors."""

from pathlib import Path

import gguf
import numpy as np

F32, Q4_K, Q6_K = (gguf.GGMLQuantizationType[name] for name in ("F32", "Q4_K", "Q6_K"))


def write_sparse_8b(path: Path, layers: int = 32) -> Path:
    """Write the header of Llama 3.1 8B as Q4_K_M has it: of half of the layers, values and down projections in Q6_K,
    and so is the head."""
    hidden, inner, keys, vocabulary = 4096, 14336, 1024, 128256
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_token_list(["a", "bc", ""])
    writer.add_token_types([1, 1, 3])
    writer.add_eos_token_id(2)
    writer.add_block_count(layers)
    writer.add_context_length(131072)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(inner)
    writer.add_head_count(32)
    writer.add_head_count_kv(8)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_file_type(15)
    tensors: dict[str, tuple[tuple[int, ...], gguf.GGMLQuantizationType]] = {
        "token_embd": ((vocabulary, hidden), Q4_K),
        "output": ((vocabulary, hidden), Q6_K),
    }
    tensors |= {"output_norm": ((hidden,), F32), "rope_freqs": ((64,), F32)}
    for layer in range(layers):
        more = Q6_K if layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2 else Q4_K
        sizes: dict[str, tuple[tuple[int, ...], gguf.GGMLQuantizationType]] = {
            "attn_norm": ((hidden,), F32), "ffn_norm": ((hidden,), F32), "attn_q": ((hidden, hidden), Q4_K),
            "attn_k": ((keys, hidden), Q4_K), "attn_v": ((keys, hidden), more), "attn_output": ((hidden, hidden), Q4_K),
            "ffn_gate": ((inner, hidden), Q4_K), "ffn_up": ((inner, hidden), Q4_K), "ffn_down": ((hidden, inner), more),
        }  # fmt: skip
        tensors |= {f"blk.{layer}.{name}": one for name, one in sizes.items()}
    total = 0
    for name, (shape, kind) in tensors.items():
        stored = shape if kind == F32 else gguf.quant_shape_to_byte_shape(shape, kind)
        size = int(np.prod(stored)) * (4 if kind == F32 else 1)
        dtype = np.dtype(np.float32 if kind == F32 else np.uint8)
        writer.add_tensor_info(f"{name}.weight", stored, dtype, size, raw_dtype=None if kind == F32 else kind)
        total += size + -size % 32
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size + 32 + total)
    return path
