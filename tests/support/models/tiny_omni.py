# SPDX-License-Identifier: Apache-2.0
"""A tiny random Qwen3-Omni, made by transformers, as a Hugging Face directory with a tokenizer and a chat template.

Sizes are multiples of 32: the kernels can compute its decoders, and two ranks divide its Thinker and its Talker.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json
from tokenizers import AddedToken, Tokenizer
from transformers import Qwen3OmniMoeForConditionalGeneration
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeConfig

from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config
from pontil.runtime.stages.qwen3_omni.directory import PartCheckpoint, code2wav_checkpoint
from pontil.runtime.stages.qwen3_omni.speech_loading import load_talker, load_talker_decoder
from pontil.runtime.stages.qwen3_omni.talker import Talker

ROLES = ("system", "user", "assistant")
MARKS = (
    "<tts_pad>", "<tts_text_bos>", "<tts_text_eod>", "<|audio_start|>", "<|audio_pad|>", "<|image_pad|>",
    "<|video_pad|>", "<|vision_start|>",
)  # fmt: skip
CODES, SPECIAL_CODES, GROUPS = 64, 1024, 4
THINKER_SIZE = 64
SPEAKERS = {"ethan": CODES + 20, "chelsie": CODES + 21}


def omni_tokenizer() -> Tokenizer:
    """A byte-level tokenizer in which each role is one token, as each is in the model's own."""
    tokenizer = byte_level_tokenizer()
    tokenizer.add_tokens([AddedToken(role, normalized=False) for role in ROLES])
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in MARKS])
    return tokenizer


def omni_config(tokenizer: Tokenizer, talker_positions: int = 1024, **changes: Any) -> Qwen3OmniMoeConfig:
    """The configuration; `changes` are fields of its top, `talker_positions` is the Talker's context."""
    ids = {name: tokenizer.token_to_id(name) for name in (*ROLES, *MARKS)}
    media = {
        "audio_token_id": ids["<|audio_pad|>"],
        "image_token_id": ids["<|image_pad|>"],
        "video_token_id": ids["<|video_pad|>"],
        "audio_start_token_id": ids["<|audio_start|>"],
        "vision_start_token_id": ids["<|vision_start|>"],
    }
    fields: dict[str, Any] = {
        "thinker_config": {
            **media,
            "user_token_id": ids["user"],
            "text_config": thinker_text(tokenizer.get_vocab_size()),
            "audio_config": {
                "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16, "d_model": 16,
                "output_dim": THINKER_SIZE, "downsample_hidden_size": 8, "num_mel_bins": 16,
            },
            "vision_config": {
                "depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 2, "out_hidden_size": THINKER_SIZE,
                "num_position_embeddings": 16, "deepstack_visual_indexes": [0],
            },
        },
        "talker_config": {
            **media,
            "text_config": talker_text() | {"max_position_embeddings": talker_positions},
            "code_predictor_config": code_predictor(),
            "num_code_groups": GROUPS,
            "thinker_hidden_size": THINKER_SIZE,
            "accept_hidden_layer": 2,
            "codec_eos_token_id": CODES + 10,
            "codec_nothink_id": CODES + 11,
            "codec_think_bos_id": CODES + 12,
            "codec_think_eos_id": CODES + 13,
            "codec_pad_id": CODES + 14,
            "codec_bos_id": CODES + 15,
            "speaker_id": SPEAKERS,
            "spatial_merge_size": 2,
        },
        "code2wav_config": code2wav(),
        "im_start_token_id": tokenizer.token_to_id("<|im_start|>"),
        "im_end_token_id": tokenizer.token_to_id("<|im_end|>"),
        "tts_pad_token_id": ids["<tts_pad>"],
        "tts_bos_token_id": ids["<tts_text_bos>"],
        "tts_eos_token_id": ids["<tts_text_eod>"],
        **{f"{role}_token_id": ids[role] for role in ROLES},
    }  # fmt: skip
    return Qwen3OmniMoeConfig(**(fields | changes))


def decoder(**sizes: Any) -> dict[str, Any]:
    return {
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 1024,
        "initializer_range": 0.3,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 5000.0, "mrope_section": [4, 2, 2], "interleaved": True,
        },
    } | sizes  # fmt: skip


def thinker_text(vocabulary: int) -> dict[str, Any]:
    return decoder(
        vocab_size=vocabulary, hidden_size=THINKER_SIZE, intermediate_size=96, num_hidden_layers=3,
        moe_intermediate_size=32, num_experts=6, num_experts_per_tok=2, mlp_only_layers=[1],
    )  # fmt: skip


def talker_text() -> dict[str, Any]:
    return decoder(
        vocab_size=CODES + SPECIAL_CODES, hidden_size=32, intermediate_size=64, num_hidden_layers=3,
        moe_intermediate_size=16, num_experts=4, num_experts_per_tok=2, shared_expert_intermediate_size=96,
    )  # fmt: skip


def code_predictor() -> dict[str, Any]:
    return decoder(
        vocab_size=CODES, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_code_groups=GROUPS,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    )  # fmt: skip


def code2wav() -> dict[str, Any]:
    return {
        "codebook_size": CODES, "hidden_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2,
        "sliding_window": 7, "intermediate_size": 48, "num_hidden_layers": 2, "num_quantizers": GROUPS,
        "upsample_rates": [4, 3], "upsampling_ratios": [2, 2], "decoder_dim": 32,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
    }  # fmt: skip


def omni_model(config: Qwen3OmniMoeConfig) -> Qwen3OmniMoeForConditionalGeneration:
    """Return a float32 model. Vectors are random too, as in `hugging_model`, and the waveform is neither silent nor cut
    off."""
    torch.manual_seed(11)
    model = Qwen3OmniMoeForConditionalGeneration._from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.startswith("talker.") and parameter.ndim == 3:
                # transformers leaves these experts as the memory was.
                parameter.copy_(torch.randn_like(parameter) * 0.3)
            elif parameter.ndim == 1:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            elif name.startswith("code2wav."):
                parameter.copy_(torch.randn_like(parameter) * 0.6 * parameter[0].numel() ** -0.5)
            elif name.startswith("talker.") and name.endswith("mlp.gate.weight"):
                # transformers leaves these routers zero: of experts with equal ratings any may be chosen.
                parameter.copy_(torch.randn_like(parameter) * 0.3)
    return model


def write_tiny_omni(directory: Path, **changes: Any) -> Qwen3OmniMoeForConditionalGeneration:
    """Write the model with its tokenizer; return it. `changes` are fields of the configuration's top."""
    tokenizer = omni_tokenizer()
    model = omni_model(omni_config(tokenizer, **changes))
    model.save_pretrained(directory)
    tokenizer.save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    return model


@dataclass(frozen=True)
class OmniPair:
    """The same weights in transformers and in a directory."""

    hugging: Qwen3OmniMoeForConditionalGeneration
    path: Path

    def encoded(self, text: str) -> list[int]:
        ids: list[int] = omni_tokenizer().encode(text).ids
        return ids

    def decoded(self, ids: list[int]) -> str:
        text: str = omni_tokenizer().decode(ids)
        return text


def omni_talker(path: Path, dtype: torch.dtype = torch.float32, kernels: KernelLibrary | None = None) -> Talker:
    packing = Packing.of(kernels)

    def read(checkpoint: PartCheckpoint, part: str) -> Weights:
        return Weights(checkpoint.tensors(), torch.device("cpu"), dtype, packing)

    return load_talker(path, load_talker_decoder(path, torch.device("cpu"), dtype, kernels), read)


def omni_code2wav(path: Path, kernels: KernelLibrary | None = None) -> Code2Wav:
    config = read_code2wav_config(path)
    tensors = code2wav_checkpoint(path, config).tensors()
    return Code2Wav(config, Weights(tensors, torch.device("cpu"), torch.float32, Packing.of(kernels)))
