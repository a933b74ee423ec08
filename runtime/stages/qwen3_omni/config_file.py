# SPDX-License-Identifier: Apache-2.0
"""The configurations of the parts of a Qwen3-Omni directory that make speech. No torch here."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.facts.architectures import (
    LARGEST_THETA,
    LEAST_THETA,
    SIZES,
    check_range,
    check_size,
    checked,
)
from pontil.runtime.loaders.facts.json_fields import integer, layer_count, number, read_json, section, short
from pontil.runtime.loaders.hf.config import FIXED, model_config, nested, read_hf_config, refuse_unsupported
from pontil.runtime.loaders.hf.rope import SLIDING, rope_scaling, theta
from pontil.runtime.models.architectures import ARCHITECTURES
from pontil.runtime.models.config import ModelConfig, SharedExpertConfig
from pontil.runtime.stages.qwen3_omni.config import SPECIAL_CODES, Code2WavConfig, CodecIds, TalkerConfig, TextIds

OMNI, TALKER = "qwen3_omni_moe", "qwen3_omni_moe_talker_text"
MOST_GROUPS = 64
MOST_POSITIONS = 1 << 20
MEDIA = ("audio_token_id", "image_token_id", "video_token_id")
# Hugging Face's values of ids that are missing from config.json.
MARKS = {"im_start": 151644, "user": 872, "assistant": 77091, "tts_bos": 151672, "tts_eos": 151673, "tts_pad": 151671}


def is_omni(path: Path) -> bool:
    """Return whether a model is a Qwen3-Omni. Raises ModelError for an unreadable configuration."""
    return path.is_dir() and read_json(path / "config.json").get("model_type") == OMNI


def speech_obstacle(path: Path) -> str | None:
    """Return why a model answers with text only, or None if it has the parts for speech. Raises ModelError for an
    unreadable configuration."""
    if not is_omni(path):
        return "it is no Qwen3-Omni"
    data = read_json(path / "config.json")
    if data.get("enable_audio_output") is False:
        return "its config.json has enable_audio_output = false"
    absent = [name for name in ("talker_config", "code2wav_config") if not data.get(name)]
    return f"its config.json has no {absent[0]}" if absent else None


def whole_config(path: Path) -> dict[str, Any]:
    reason = speech_obstacle(path)
    if reason is not None:
        raise ModelError(f"{path} cannot speak ({reason}): ask it for text, or choose a Qwen3-Omni with a Talker")
    return read_json(path / "config.json")


def read_talker_config(path: Path) -> TalkerConfig:
    """Read the Talker's configuration. Raises ModelError for a model without one, an unsupported feature, or a missing
    field."""
    data = whole_config(path)
    talker = section(data, "talker_config")
    groups = integer(talker, "num_code_groups")
    config = TalkerConfig(
        decoder=talker_decoder(path, talker),
        predictor=predictor_config(data, groups),
        groups=groups,
        thinker_size=integer(talker, "thinker_hidden_size"),
        accept_layer=integer(talker, "accept_hidden_layer"),
        text=text_ids(data, section(data, "thinker_config")),
        codec=CodecIds(
            **{
                name: integer(talker, f"codec_{name}_id")
                for name in ("nothink", "think_bos", "think_eos", "pad", "bos")
            }
        ),
        speakers=speakers(talker),
    )
    check_talker(config, read_hf_config(path))
    return config


def talker_decoder(path: Path, talker: dict[str, Any]) -> ModelConfig:
    """All its layers have experts, of which one is shared, whatever else the configuration says."""
    config = read_hf_config(path, TALKER)
    assert config.experts is not None
    size = integer(section(talker, "text_config"), "shared_expert_intermediate_size")
    shared = SharedExpertConfig("shared_expert", size, gated=True)
    return checked(
        replace(
            config,
            eos_token_ids=(integer(talker, "codec_eos_token_id"),),
            experts=replace(config.experts, dense_layers=(), shared=shared),
        )
    )


def predictor_config(data: dict[str, Any], groups: int) -> ModelConfig:
    """The code predictor's layers are those of a Qwen3."""
    architecture = ARCHITECTURES["qwen3"]
    data = {**architecture.defaults, **nested(data, ("talker_config", "code_predictor_config"))}
    if SLIDING in (data.get("layer_types") or ()):
        raise ModelError("the model's code predictor has layers with a window: this version runs full attention only")
    refuse_unsupported(data, {**FIXED, **architecture.fixed})
    # A frame has so many positions.
    data["max_position_embeddings"] = min(max(1, groups), MOST_GROUPS)
    return checked(model_config(architecture, data, ()))


def text_ids(data: dict[str, Any], thinker: dict[str, Any]) -> TextIds:
    media = tuple(integer(thinker, name) for name in MEDIA if thinker.get(name) is not None)
    marks = {name: integer(data, f"{name}_token_id", usual) for name, usual in MARKS.items()}
    return TextIds(**marks, media=media)


def speakers(talker: dict[str, Any]) -> tuple[tuple[str, int], ...]:
    found = section(talker, "speaker_id")
    if not found:
        raise ModelError("config.json names no speakers (talker_config.speaker_id): fetch the model again")
    return tuple((name.lower(), integer(found, name)) for name in found)


def check_talker(config: TalkerConfig, thinker: ModelConfig) -> None:
    """Raise ModelError for numbers that contradict each other."""
    decoder, predictor = config.decoder, config.predictor
    ids = [*(number for _, number in config.speakers), *decoder.eos_token_ids]
    ids += [getattr(config.codec, name) for name in config.codec.__slots__]
    faults = {
        f"has {config.groups} codes in a frame: it must be 2 to {MOST_GROUPS}": not 2 <= config.groups <= MOST_GROUPS,
        f"reads states of {config.thinker_size} numbers, but its Thinker's have {thinker.hidden_size}":
            config.thinker_size != thinker.hidden_size,
        f"reads states after {config.accept_layer} layers, but its Thinker has {thinker.num_layers}":
            not 0 <= config.accept_layer < thinker.num_layers,
        f"has a code predictor of size {predictor.hidden_size} behind states of size {decoder.hidden_size}":
            predictor.hidden_size != decoder.hidden_size,
        f"has a vocabulary of {decoder.vocab_size}: it must be more than {SPECIAL_CODES}":
            decoder.vocab_size <= SPECIAL_CODES,
        f"names ids outside its vocabulary of {decoder.vocab_size}":
            not all(0 <= one < decoder.vocab_size for one in ids),
    }  # fmt: skip
    found = [fault for fault, is_one in faults.items() if is_one]
    if found:
        raise ModelError(f"the model's Talker {found[0]}: fix config.json")


def read_code2wav_config(path: Path) -> Code2WavConfig:
    """Read the configuration of Code2Wav. Raises ModelError like `read_talker_config`."""
    data = section(whole_config(path), "code2wav_config")
    refuse_unsupported(data, {"hidden_act": "silu"})
    if rope_scaling(data) is not None:
        raise ModelError("the model's Code2Wav scales its rotary positions: this version runs them unscaled only")
    hidden, heads = integer(data, "hidden_size"), integer(data, "num_attention_heads")
    config = Code2WavConfig(
        groups=integer(data, "num_quantizers"),
        codebook_size=integer(data, "codebook_size"),
        hidden_size=hidden,
        intermediate_size=integer(data, "intermediate_size"),
        num_layers=layer_count(data),
        num_heads=heads,
        num_kv_heads=integer(data, "num_key_value_heads", heads),
        head_dim=integer(data, "head_dim", hidden // max(heads, 1)),
        window=integer(data, "sliding_window"),
        max_positions=integer(data, "max_position_embeddings", 8000),
        rms_norm_eps=number(data, "rms_norm_eps", 1e-5),
        rope_theta=theta(data),
        bias=bool(data.get("attention_bias")),
        ratios=rates(data, "upsampling_ratios"),
        rates=rates(data, "upsample_rates"),
        channels=integer(data, "decoder_dim"),
    )
    check_code2wav(config)
    return config


def rates(data: dict[str, Any], key: str) -> tuple[int, ...]:
    found = data.get(key)
    if not isinstance(found, list) or not all(type(one) is int and 0 < one <= 1000 for one in found):
        raise ModelError(f"config.json needs a list of whole numbers as {key}, not {short(found)}")
    return tuple(found)


def check_code2wav(config: Code2WavConfig) -> None:
    """Raise ModelError for sizes that no model can have."""
    sizes = {"groups": MOST_GROUPS, "codebook_size": SIZES["vocab_size"], "channels": SIZES["hidden_size"]}
    sizes |= {"window": MOST_POSITIONS, "max_positions": MOST_POSITIONS}
    sizes |= {name: most for name, most in SIZES.items() if name not in ("vocab_size", "max_model_len")}
    for name, most in sizes.items():
        check_size(f"Code2Wav's {name}", getattr(config, name), most)
    check_range("Code2Wav's rms_norm_eps", config.rms_norm_eps, 0.0, 1.0)
    check_range("Code2Wav's rope_theta", config.rope_theta, LEAST_THETA, LARGEST_THETA)
    if config.num_heads % config.num_kv_heads or config.head_dim % 2:
        raise ModelError(
            f"Code2Wav has {config.num_heads} heads of {config.head_dim} numbers over {config.num_kv_heads}: fix "
            "config.json"
        )
    if len(config.rates) > 16 or config.channels >> len(config.rates) < 1:
        raise ModelError(f"Code2Wav's {config.channels} channels cannot be halved {len(config.rates)} times")
