# SPDX-License-Identifier: Apache-2.0
"""Configurations in the form their publishers gave them, which is older than the one transformers writes today."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from pontil.runtime.loaders.config import read_config
from pontil.runtime.models.config import (
    ExpertConfig,
    LatentConfig,
    ModelConfig,
    RopeScaling,
    RoutingConfig,
    SharedExpertConfig,
)
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config, read_talker_config

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
    assert (sound.head_dim, sound.samples_per_frame, sound.samples(300)) == (64, 1920, 300 * 1920 - 555)


def test_deepseek_v3(tmp_path: Path) -> None:
    scaling = {
        "type": "yarn", "factor": 40, "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1,
        "mscale": 1.0, "mscale_all_dim": 1.0,
    }  # fmt: skip
    config = read(
        tmp_path, model_type="deepseek_v3", hidden_size=7168, intermediate_size=18432, num_hidden_layers=61,
        num_attention_heads=128, num_key_value_heads=128, vocab_size=129280, max_position_embeddings=163840,
        kv_lora_rank=512, q_lora_rank=1536, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        moe_intermediate_size=2048, n_routed_experts=256, n_shared_experts=1, num_experts_per_tok=8, n_group=8,
        topk_group=4, topk_method="noaux_tc", scoring_func="sigmoid", norm_topk_prob=True, routed_scaling_factor=2.5,
        first_k_dense_replace=3, moe_layer_freq=1, num_nextn_predict_layers=1, rms_norm_eps=1e-6, rope_theta=10000,
        rope_scaling=scaling, attention_bias=False, tie_word_embeddings=False, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    assert config.latent == LatentConfig(rank=512, query_rank=1536, key_dim=128, rotary_dim=64, value_dim=128)
    assert (config.num_kv_heads, config.head_dim, config.kv_planes, config.rotated) == (1, 576, 1, 64)
    # The first three layers have no experts.
    assert config.experts == ExpertConfig(
        256, 8, 2048, True, (0, 1, 2), SharedExpertConfig("shared_experts", 2048),
        RoutingConfig("sigmoid", True, groups=8, kept_groups=4, group_best=2, factor=2.5),
    )  # fmt: skip
    assert config.query_scale == pytest.approx(192**-0.5 * (0.1 * math.log(40) + 1) ** 2)
    assert config.rope_scaling is not None and config.rope_scaling.attention_factor == 1.0
    assert config.interleaved and config.max_model_len == 163840


def test_deepseek_v2_lite(tmp_path: Path) -> None:
    config = read(
        tmp_path, model_type="deepseek_v2", hidden_size=2048, intermediate_size=10944, num_hidden_layers=27,
        num_attention_heads=16, num_key_value_heads=16, vocab_size=102400, max_position_embeddings=163840,
        kv_lora_rank=512, q_lora_rank=None, qk_nope_head_dim=128, qk_rope_head_dim=64, v_head_dim=128,
        moe_intermediate_size=1408, n_routed_experts=64, n_shared_experts=2, num_experts_per_tok=6, n_group=1,
        topk_group=1, topk_method="greedy", scoring_func="softmax", norm_topk_prob=False, routed_scaling_factor=1.0,
        first_k_dense_replace=1, moe_layer_freq=1, rms_norm_eps=1e-6, rope_theta=10000, attention_bias=False,
        tie_word_embeddings=False, bos_token_id=100000, eos_token_id=100001,
    )  # fmt: skip
    assert config.latent is not None and config.latent.query_rank is None
    shared = SharedExpertConfig("shared_experts", 2816)
    assert config.experts == ExpertConfig(64, 6, 1408, False, (0,), shared, RoutingConfig())


def test_mixtral_8x7b(tmp_path: Path) -> None:
    config = read(
        tmp_path, model_type="mixtral", hidden_size=4096, intermediate_size=14336, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=32000, max_position_embeddings=32768,
        num_local_experts=8, num_experts_per_tok=2, sliding_window=None, rope_theta=1e6, rms_norm_eps=1e-5,
        router_aux_loss_coef=0.02, output_router_logits=False, tie_word_embeddings=False, eos_token_id=2,
    )  # fmt: skip
    assert config.experts == ExpertConfig(8, 2, 14336, True) and config.windows == ()


def test_gpt_oss_20b(tmp_path: Path) -> None:
    scaling = {
        "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
        "original_max_position_embeddings": 4096,
    }  # fmt: skip
    form = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"],
    }
    config = read(
        tmp_path, model_type="gpt_oss", hidden_size=2880, intermediate_size=2880, num_hidden_layers=24, head_dim=64,
        num_attention_heads=64, num_key_value_heads=8, vocab_size=201088, max_position_embeddings=131072,
        num_local_experts=32, num_experts_per_tok=4, experts_per_token=4, sliding_window=128, rope_theta=150000,
        layer_types=["sliding_attention", "full_attention"] * 12, rope_scaling=scaling, attention_bias=True,
        swiglu_limit=7.0, rms_norm_eps=1e-5, eos_token_id=200002, quantization_config=form,
    )  # fmt: skip
    assert config.experts == ExpertConfig(
        32, 4, 2880, True, routing=RoutingConfig(product_bias=True), clamp=(1.702, 7.0)
    )
    assert config.windows == (128, None) * 12 and config.sinks and config.qkv_bias and config.output_bias
    assert config.weight_block is None and config.max_model_len == 131072
    assert config.rope_scaling is not None and not config.rope_scaling.truncate


def test_glm_4_5(tmp_path: Path) -> None:
    config = read(
        tmp_path, model_type="glm4_moe", hidden_size=5120, intermediate_size=12288, num_hidden_layers=92, head_dim=128,
        num_attention_heads=96, num_key_value_heads=8, vocab_size=151552, max_position_embeddings=131072,
        attention_bias=True, partial_rotary_factor=0.5, rope_theta=1000000, use_qk_norm=True, n_routed_experts=160,
        n_shared_experts=1, moe_intermediate_size=1536, num_experts_per_tok=8, n_group=1, topk_group=1,
        norm_topk_prob=True, routed_scaling_factor=2.5, first_k_dense_replace=3, num_nextn_predict_layers=1,
        rms_norm_eps=1e-5, tie_word_embeddings=False, eos_token_id=[151329, 151336, 151338],
    )  # fmt: skip
    assert config.experts == ExpertConfig(
        160, 8, 1536, True, (0, 1, 2), SharedExpertConfig("shared_experts", 1536),
        RoutingConfig("sigmoid", True, group_best=2, factor=2.5),
    )  # fmt: skip
    assert (config.rotated, config.head_norms, config.qkv_bias, config.output_bias) == (64, True, True, False)
    assert not config.interleaved
