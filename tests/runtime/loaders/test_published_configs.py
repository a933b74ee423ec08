# SPDX-License-Identifier: Apache-2.0
"""Configurations in the form their publishers gave them, which is older than the one transformers writes today."""

import json
from pathlib import Path
from typing import Any

from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.omni_config import read_code2wav_config, read_talker_config
from pontil.runtime.models.config import ExpertConfig, ModelConfig, RopeScaling, SharedExpertConfig

COMMON: dict[str, Any] = {"hidden_act": "silu", "torch_dtype": "bfloat16", "use_cache": True, "rope_scaling": None}


def read(directory: Path, **fields: Any) -> ModelConfig:
    (directory / "config.json").write_text(json.dumps(COMMON | fields))
    return read_config(directory)


def test_llama_3_2_1b(tmp_path: Path) -> None:
    bounds = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    config = read(
        tmp_path, model_type="llama", hidden_size=2048, intermediate_size=8192, num_hidden_layers=16, head_dim=64,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=131072,
        rms_norm_eps=1e-5, rope_theta=500000.0, rope_scaling=bounds | {"rope_type": "llama3"}, attention_bias=False,
        mlp_bias=False, pretraining_tp=1, tie_word_embeddings=True, bos_token_id=128000, eos_token_id=128001,
    )  # fmt: skip
    assert config.rope_scaling == RopeScaling("llama3", 32.0, 8192, 1.0, 4.0)
    assert (config.max_model_len, config.rope_theta, config.qkv_bias) == (131072, 500000.0, False)


def test_mistral_7b_with_and_without_a_window(tmp_path: Path) -> None:
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32}
    sizes |= {"num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 32768}
    first = read(tmp_path, model_type="mistral", sliding_window=4096, rope_theta=10000.0, **sizes)
    assert (first.windows, first.head_dim) == ((4096,) * 32, 128)
    second = read(tmp_path, model_type="mistral", sliding_window=None, rope_theta=1e6, **sizes)
    assert (second.windows, second.rope_theta) == ((), 1e6)


def test_qwen_2_5(tmp_path: Path) -> None:
    config = read(
        tmp_path, model_type="qwen2", hidden_size=896, intermediate_size=4864, num_hidden_layers=24,
        num_attention_heads=14, num_key_value_heads=2, vocab_size=151936, max_position_embeddings=32768,
        max_window_layers=21, sliding_window=32768, use_sliding_window=False, use_mrope=False, rms_norm_eps=1e-6,
        rope_theta=1000000.0, tie_word_embeddings=True, bos_token_id=151643, eos_token_id=151645,
    )  # fmt: skip
    assert (config.qkv_bias, config.output_bias, config.windows, config.head_dim) == (True, False, (), 64)


def test_qwen_3_30b_a3b(tmp_path: Path) -> None:
    config = read(
        tmp_path, model_type="qwen3_moe", hidden_size=2048, intermediate_size=6144, num_hidden_layers=48, head_dim=128,
        num_attention_heads=32, num_key_value_heads=4, vocab_size=151936, max_position_embeddings=40960,
        attention_bias=False, decoder_sparse_step=1, max_window_layers=48, mlp_only_layers=[], sliding_window=None,
        use_sliding_window=False, moe_intermediate_size=768, norm_topk_prob=True, num_experts=128,
        num_experts_per_tok=8, rope_theta=1000000.0, tie_word_embeddings=False,
    )  # fmt: skip
    assert config.experts == ExpertConfig(128, 8, 768, True, ())
    assert all(config.is_sparse(layer) for layer in range(48))


def test_gemma_3_1b(tmp_path: Path) -> None:
    config = read(
        tmp_path, model_type="gemma3_text", hidden_size=1152, intermediate_size=6912, num_hidden_layers=26,
        num_attention_heads=4, num_key_value_heads=1, head_dim=256, vocab_size=262144, max_position_embeddings=32768,
        hidden_activation="gelu_pytorch_tanh", attention_bias=False, attn_logit_softcapping=None,
        final_logit_softcapping=None, query_pre_attn_scalar=256, rope_local_base_freq=10000, rope_theta=1000000,
        sliding_window=512, sliding_window_pattern=6, rms_norm_eps=1e-6, bos_token_id=2, eos_token_id=[1, 106],
    )  # fmt: skip
    assert config.windows == ((512,) * 5 + (None,)) * 4 + (512, 512)
    assert (config.local_rope_theta, config.rope_theta) == (10000.0, 1e6)
    assert (config.tie_word_embeddings, config.query_scale, config.eos_token_ids) == (True, 1 / 16, (1, 106))


def test_qwen_3_omni_30b_a3b(tmp_path: Path) -> None:
    """Sections repeat fields of transformers' configurations as null, and have the older form of rotary positions."""
    rope = {"interleaved": True, "mrope_section": [24, 20, 20], "rope_type": "default", "type": "default"}
    usual = {
        "rope_scaling": rope, "rope_theta": 1000000, "head_dim": 128, "max_position_embeddings": 65536, "dtype": None,
        "hidden_act": "silu", "decoder_sparse_step": 1, "mlp_only_layers": [], "norm_topk_prob": True,
        "num_experts": 128, "rms_norm_eps": 1e-6, "sliding_window": None, "eos_token_id": None,
    }  # fmt: skip
    media = {"audio_token_id": 151675, "image_token_id": 151655, "video_token_id": 151656}
    thinker_text = usual | {
        "hidden_size": 2048, "intermediate_size": 768, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "moe_intermediate_size": 768, "num_experts_per_tok": 8, "vocab_size": 152064,
        "shared_expert_intermediate_size": 0,
    }  # fmt: skip
    talker_text = usual | {
        "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 20, "num_attention_heads": 16,
        "num_key_value_heads": 2, "moe_intermediate_size": 384, "num_experts_per_tok": 6, "vocab_size": 3072,
        "shared_expert_intermediate_size": 768,
    }  # fmt: skip
    predictor = {
        "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 5, "num_attention_heads": 16,
        "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 2048, "rope_scaling": None, "rope_theta": 1000000,
        "layer_types": ["full_attention"] * 5, "sliding_window": None, "max_window_layers": 28, "dtype": None,
    }  # fmt: skip
    talker = media | {
        "text_config": talker_text, "code_predictor_config": predictor, "num_code_groups": 16,
        "accept_hidden_layer": 24, "thinker_hidden_size": 2048, "codec_bos_id": 2149, "codec_eos_token_id": 2150,
        "codec_pad_id": 2148, "codec_nothink_id": 2155, "codec_think_bos_id": 2156, "codec_think_eos_id": 2157,
        "speaker_id": {"chelsie": 2301, "ethan": 2302, "aiden": 2303},
    }  # fmt: skip
    code2wav = {
        "num_quantizers": 16, "codebook_size": 2048, "hidden_size": 1024, "intermediate_size": 3072,
        "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 16, "sliding_window": 72,
        "rope_theta": 10000, "rms_norm_eps": 1e-5, "decoder_dim": 1536, "upsample_rates": [8, 5, 4, 3],
        "upsampling_ratios": [2, 2], "max_position_embeddings": 8000, "hidden_act": "silu",
    }  # fmt: skip
    thinker = read(
        tmp_path, model_type="qwen3_omni_moe", dtype="bfloat16", enable_audio_output=True, im_end_token_id=151645,
        im_start_token_id=151644, thinker_config=media | {"text_config": thinker_text}, talker_config=talker,
        code2wav_config=code2wav,
    )  # fmt: skip
    assert thinker.experts == ExpertConfig(128, 8, 768, True, ())
    assert (thinker.dtype, thinker.rope_theta, thinker.eos_token_ids) == ("bfloat16", 1e6, (151645,))
    config = read_talker_config(tmp_path)
    shared = SharedExpertConfig("shared_expert", 768, gated=True)
    assert config.decoder.experts == ExpertConfig(128, 6, 384, True, (), shared)
    assert (config.decoder.dtype, config.decoder.eos_token_ids, config.speaker("Aiden")) == ("bfloat16", (2150,), 2303)
    assert (config.predictor.rope_theta, config.predictor.max_model_len) == (1e6, 16)
    assert (config.text.user, config.text.media) == (872, (151675, 151655, 151656))
    sound = read_code2wav_config(tmp_path)
    assert (sound.head_dim, sound.samples_per_frame, sound.samples(300, 25)) == (64, 1920, 300 * 1920 - 555)
