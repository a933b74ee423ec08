# SPDX-License-Identifier: Apache-2.0
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import fetch
from pontil.runtime.loaders.builtin_models import BUILTINS
from pontil.runtime.loaders.config import read_config
from pontil.runtime.models.config import ExpertConfig, RopeScaling

ROOT = Path(__file__).resolve().parents[3]


def change(directory: Path, **changes: Any) -> None:
    """Set fields of config.json; `...` removes one."""
    path = directory / "config.json"
    data = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in data.items() if value is not ...}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    config = write_tiny_llama(tmp_path, num_kv_heads=1, dtype="bfloat16", vocab_size=320)
    assert read_config(tmp_path) == config


def test_the_built_in_model() -> None:
    config = read_config(fetch(BUILTINS["smollm2-135m-instruct"], Path("~/.cache/pontil")))
    assert (config.num_layers, config.hidden_size, config.num_heads, config.num_kv_heads) == (30, 576, 9, 3)
    assert (config.vocab_size, config.max_model_len, config.head_dim) == (49152, 8192, 64)
    assert (config.rope_theta, config.rms_norm_eps) == (100000.0, 1e-5)
    assert (config.eos_token_ids, config.bos_token_id, config.tie_word_embeddings) == ((2,), 1, True)


def test_defaults_of_older_files(tiny: Path) -> None:
    absent = ["num_key_value_heads", "head_dim", "rope_theta", "rms_norm_eps", "tie_word_embeddings", "bos_token_id"]
    change(tiny, **dict.fromkeys(absent, ...))
    config = read_config(tiny)
    assert (config.num_kv_heads, config.head_dim, config.rope_theta) == (4, 16, 10000.0)
    assert (config.rms_norm_eps, config.tie_word_embeddings, config.bos_token_id) == (1e-6, False, None)


def test_the_newer_form_of_rotary_parameters(tiny: Path) -> None:
    change(tiny, rope_theta=..., rope_parameters={"rope_type": "default", "rope_theta": 5e5})
    assert read_config(tiny).rope_theta == 5e5


def test_rotary_scaling(tiny: Path) -> None:
    change(tiny, rope_scaling={"type": "linear", "factor": 2})
    assert read_config(tiny).rope_scaling == RopeScaling("linear", 2.0)
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    change(tiny, rope_scaling={"rope_type": "llama3", "factor": 8.0} | bounds)
    assert read_config(tiny).rope_scaling == RopeScaling("llama3", 8.0, 64, 1.0, 4.0)
    change(tiny, rope_scaling={"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512})
    config = read_config(tiny)
    assert config.rope_scaling == RopeScaling("yarn", 4.0, 512, attention_factor=0.1 * math.log(4) + 1)
    assert config.max_model_len == 2048


def test_windows_of_each_architecture(tiny: Path) -> None:
    change(tiny, sliding_window=9, num_hidden_layers=3)
    assert read_config(tiny).windows == ()
    change(tiny, model_type="mistral")
    assert read_config(tiny).windows == (9, 9, 9)
    change(tiny, model_type="qwen3", max_window_layers=1)
    assert read_config(tiny).windows == ()
    change(tiny, use_sliding_window=True)
    assert read_config(tiny).windows == (None, 9, 9)
    change(tiny, layer_types=["full_attention", "full_attention", "sliding_attention"])
    assert read_config(tiny).windows == (None, None, 9)
    change(tiny, model_type="gemma3_text", layer_types=..., sliding_window_pattern=2, query_pre_attn_scalar=4)
    config = read_config(tiny)
    assert (config.windows, config.query_scale) == ((9, None, 9), 0.5)


def test_gemma_without_eyes_may_be_a_section(tiny: Path) -> None:
    change(tiny, model_type="gemma3", text_config={"rope_theta": 7.0, "rope_local_base_freq": 5.0, "head_dim": 4})
    config = read_config(tiny)
    assert (config.architecture, config.rope_theta, config.local_rope_theta) == ("gemma3_text", 7.0, 5.0)
    assert config.head_dim == 4


def test_experts(tiny: Path) -> None:
    sizes = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
    change(tiny, model_type="qwen3_moe", num_hidden_layers=4, **sizes)
    assert read_config(tiny).experts == ExpertConfig(8, 2, 24, False, ())
    change(tiny, norm_topk_prob=True, decoder_sparse_step=2, mlp_only_layers=[1])
    assert read_config(tiny).experts == ExpertConfig(8, 2, 24, True, (0, 1, 2))
    change(tiny, num_experts_per_tok=9)
    with pytest.raises(ModelError, match="9 of 8 experts"):
        read_config(tiny)


def test_biases(tiny: Path) -> None:
    assert (read_config(tiny).qkv_bias, read_config(tiny).output_bias) == (False, False)
    change(tiny, attention_bias=True)
    assert (read_config(tiny).qkv_bias, read_config(tiny).output_bias) == (True, True)
    change(tiny, attention_bias=..., model_type="qwen2")
    assert (read_config(tiny).qkv_bias, read_config(tiny).output_bias) == (True, False)


@pytest.mark.parametrize(("eos", "ids"), [(5, (5,)), ([5, 6, 5], (5, 6)), (None, ())])
def test_end_tokens(tiny: Path, eos: Any, ids: tuple[int, ...]) -> None:
    (tiny / "generation_config.json").unlink()
    change(tiny, eos_token_id=eos)
    assert read_config(tiny).eos_token_ids == ids


def test_the_generation_config_has_the_last_word(tiny: Path) -> None:
    (tiny / "generation_config.json").write_text('{"eos_token_id": [9, 2]}')
    assert read_config(tiny).eos_token_ids == (9, 2)
    (tiny / "generation_config.json").write_text("{}")
    assert read_config(tiny).eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model_type": "gpt_neox"}, "'gpt_neox' is not known: this version runs llama"),
        ({"model_type": ...}, "None is not known"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, r"\('dynamic'\): this version runs default, linear"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "number as low_freq_factor, not None"),
        ({"rope_scaling": {"type": "linear", "factor": 0}}, r"factor of the rotary positions is 0\.0"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"model_type": "mistral", "attention_bias": True}, "attention_bias = True"),
        ({"model_type": "mistral", "sliding_window": 0}, "sliding_window is 0"),
        ({"model_type": "gemma3", "vision_config": {"hidden_size": 8}}, "reads images too"),
        ({"model_type": "gemma3_text", "sliding_window": None}, "number as sliding_window, not None"),
        ({"model_type": "gemma3_text", "attn_logit_softcapping": 50.0}, "attn_logit_softcapping = 50.0"),
        ({"model_type": "gemma3_text", "layer_types": ["full_attention"]}, "list of 2 times full_attention or"),
        ({"model_type": "gemma3_text", "rope_parameters": {"sliding_attention": {"rope_type": "yarn"}}}, "yarn"),
        ({"model_type": "qwen3_moe"}, "num_local_experts, not None"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "awq"),
        ({"hidden_size": "64"}, "hidden_size, not '64'"),
        ({"num_hidden_layers": ...}, "num_hidden_layers, not None"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_attention_heads": 0}, "num_heads is 0"),
        ({"num_key_value_heads": 3}, "cannot share 3"),
        ({"eos_token_id": "x", "bos_token_id": 1}, "eos_token_id is 'x'"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn"),
    ],
)
def test_what_cannot_run_is_refused_by_name(tiny: Path, changes: dict[str, Any], says: str) -> None:
    (tiny / "generation_config.json").unlink()
    change(tiny, **changes)
    with pytest.raises(ModelError, match=says):
        read_config(tiny)


@pytest.mark.parametrize(("content", "says"), [("{", "not JSON"), ("[1]", "no JSON object"), ("[" * 9999, "not JSON")])
def test_a_damaged_config(tiny: Path, content: str, says: str) -> None:
    (tiny / "config.json").write_text(content)
    with pytest.raises(ModelError, match=says):
        read_config(tiny)


def test_no_torch() -> None:
    code = "import app, sys, pontil.runtime.loaders.config; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"kv_lora_rank": ...}, "whole number as kv_lora_rank, not None"),
        ({"q_lora_rank": "8"}, "whole number as q_lora_rank, not '8'"),
        ({"v_head_dim": 0}, "value_dim of the model's latent attention is 0"),
        ({"qk_rope_head_dim": 7}, "turns 7 of 39 dimensions"),
        (
            {"topk_method": "best"},
            "chooses experts by 'best': this version runs greedy, group_limited_greedy, noaux_tc",
        ),
        ({"scoring_func": ["sigmoid"]}, r"rates experts by \['sigmoid'\]"),
        ({"n_group": 3}, "8 experts cannot be divided into 3 groups"),
        ({"topk_group": 5}, "5 of 4 groups of experts cannot be kept"),
        ({"num_experts_per_tok": 6}, "groups of 2 experts are too small for 6 experts"),
        ({"n_shared_experts": -1}, "the shared expert's intermediate size is -24"),
        ({"attention_bias": True}, "attention_bias = True"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor = 0.5: this version turns whole heads"),
    ],
)
def test_a_deepseek_that_cannot_run_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    write_tiny_deepseek(tmp_path)
    change(tmp_path, **changes)
    with pytest.raises(ModelError, match=says):
        read_config(tmp_path)
