# SPDX-License-Identifier: Apache-2.0
"""Qwen3-Omni directories: the facts that are read from them, and one sentence for each that cannot speak."""

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quantized_directory import FORMS, quantize
from safetensors.torch import load_file, save_file
from tiny_llama import write_tiny_llama
from tiny_omni import CODES, GROUPS, SPEAKERS, THINKER_SIZE, omni_code2wav, omni_talker, write_tiny_omni

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.level_formats import level_formats
from pontil.runtime.stages.qwen3_omni.config_file import (
    is_omni,
    read_code2wav_config,
    read_talker_config,
    speech_obstacle,
)
from pontil.runtime.stages.qwen3_omni.directory import (
    code2wav_checkpoint,
    predictor_checkpoint,
    projections_checkpoint,
    talker_checkpoint,
)

Fields = dict[str, Any]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omni")
    write_tiny_omni(path)
    return path


@pytest.fixture
def directory(source: Path, tmp_path: Path) -> Path:
    """A copy that a test may change."""
    return Path(shutil.copytree(source, tmp_path / "model"))


def change(directory: Path, changed: Callable[[Fields], None]) -> None:
    path = directory / "config.json"
    data = json.loads(path.read_text())
    changed(data)
    path.write_text(json.dumps(data))


def test_the_parts_of_a_directory(source: Path) -> None:
    assert is_omni(source) and speech_obstacle(source) is None
    config = read_talker_config(source)
    assert (config.groups, config.accept_layer, config.thinker_size) == (GROUPS, 2, THINKER_SIZE)
    assert config.decoder.eos_token_ids == (CODES + 10,) and len(config.suppressed) == 1023
    assert CODES - 1 not in config.suppressed and CODES in config.suppressed and CODES + 10 not in config.suppressed
    assert config.speaker("Ethan") == SPEAKERS["ethan"] and config.speaker("nobody") is None
    assert config.decoder.experts is not None and config.decoder.experts.shared is not None
    assert config.decoder.experts.shared.gated and config.decoder.experts.dense_layers == ()
    assert config.predictor.max_model_len == GROUPS
    assert math.prod(read_code2wav_config(source).rates) == 12
    thinker = read_config(source)
    assert thinker.architecture == "qwen3_omni_moe_text" and thinker.eos_token_ids == (2,)
    fingerprints = {config.fingerprint(), read_code2wav_config(source).fingerprint(), thinker.fingerprint()}
    assert len(fingerprints) == 3


def test_marks_of_text_are_rows_of_the_thinkers_embedding(source: Path) -> None:
    config = read_talker_config(source)
    found = dict(projections_checkpoint(source, config).tensors())
    embedding = load_file(source / "model.safetensors")["thinker.model.embed_tokens.weight"]
    ids = [config.text.tts_bos, config.text.tts_eos, config.text.tts_pad]
    assert len(set(ids)) == 3 and torch.equal(found["text_marks"], embedding[ids])


def test_quantized_parts_are_the_weights_that_they_stand_for(directory: Path) -> None:
    config = read_talker_config(directory)

    def read() -> list[dict[str, torch.Tensor]]:
        opened = talker_checkpoint(directory, config), predictor_checkpoint(directory, config)
        return [dict(one.tensors()) for one in (*opened, projections_checkpoint(directory, config))]

    plain = read()
    stands_for = quantize(directory, *FORMS["bytes"], kept=("thinker", "code2wav", "embed", "head", "norm", "gate."))
    for before, found in zip(plain, read(), strict=True):
        changed = 0
        assert sorted(found) == sorted(before)
        for name, tensor in found.items():
            ends = [weight for stored, weight in stands_for.items() if stored.endswith(name)]
            expected = [torch.from_numpy(weight).float() for weight in ends] or [before[name].float()]
            changed += bool(ends)
            assert any(
                torch.allclose(tensor.float(), weight, atol=1e-6) for weight in expected if weight.shape == tensor.shape
            )
        assert changed
    assert dict(code2wav_checkpoint(directory, read_code2wav_config(directory)).tensors())


def test_a_part_may_have_another_scheme_than_the_thinker(directory: Path) -> None:
    """The Talker's decoder and its projections have one of their own, and its code predictor has none."""
    config = read_talker_config(directory)

    def read() -> dict[str, dict[str, torch.Tensor]]:
        return {
            "decoder": dict(talker_checkpoint(directory, config).tensors()),
            "predictor": dict(predictor_checkpoint(directory, config).tensors()),
            "projections": dict(projections_checkpoint(directory, config).tensors()),
        }

    plain = read()
    others = ("embed", "head", "norm", "gate.", "code2wav")
    form, encode = FORMS["bytes"]
    quantize(directory, form, encode, kept=("thinker", "predictor", *others))
    change(directory, lambda data: data["talker_config"].update(quantization_config=data.pop("quantization_config")))
    form, encode = FORMS["gptq-8"]
    quantize(directory, form, encode, kept=("talker", "visual", "audio", *others))
    assert level_formats(directory, read_config(directory))
    for name, found in read().items():
        assert found.keys() == plain[name].keys()
        off = max(float((found[tensor].float() - plain[name][tensor].float()).abs().max()) for tensor in found)
        assert off < 0.1 and bool(off) == (name != "predictor")


def test_quantized_weights_of_unknown_shapes_are_refused(directory: Path) -> None:
    quantize(directory, *FORMS["bytes"], kept=("thinker", "talker", "embed", "norm"))
    with pytest.raises(
        ModelError, match=r"code2wav\.\* has quantized weights, .*weight_scale.*: fetch a version"
    ) as caught:
        code2wav_checkpoint(directory, read_code2wav_config(directory))
    assert "\n" not in str(caught.value)


def test_a_type_of_numbers_at_the_top_is_that_of_all_parts(directory: Path) -> None:
    change(directory, lambda data: data.update(dtype="bfloat16"))
    assert read_config(directory).dtype == read_talker_config(directory).decoder.dtype == "bfloat16"


def test_models_that_cannot_speak(directory: Path, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "llama")
    assert not is_omni(tmp_path / "llama")
    with pytest.raises(ModelError, match=r"cannot speak \(it is no Qwen3-Omni\): ask it for text"):
        read_talker_config(tmp_path / "llama")
    change(directory, lambda data: data.pop("talker_config"))
    with pytest.raises(ModelError, match=r"cannot speak \(its config\.json has no talker_config\)"):
        read_code2wav_config(directory)
    change(directory, lambda data: data.update(enable_audio_output=False))
    with pytest.raises(ModelError, match=r"cannot speak \(its config\.json has enable_audio_output = false\)"):
        read_talker_config(directory)
    assert read_config(directory).vocab_size > 0


def test_a_directory_of_a_thinker_alone(tmp_path: Path) -> None:
    """The form in which transformers writes a model without audio output: its text is served."""
    write_tiny_omni(tmp_path, enable_audio_output=False)
    assert speech_obstacle(tmp_path) == "its config.json has enable_audio_output = false"
    assert read_config(tmp_path).num_layers == 3


TALKER_FAULTS: dict[str, tuple[Fields, str]] = {
    "layer": ({"accept_hidden_layer": 3}, "reads states after 3 layers, but its Thinker has 3"),
    "size": ({"thinker_hidden_size": 47}, "reads states of 47 numbers, but its Thinker's have 64"),
    "groups": ({"num_code_groups": 1}, "has 1 codes in a frame: it must be 2 to 64"),
    "many groups": ({"num_code_groups": 10**12}, "has 1000000000000 codes in a frame"),
    "no groups": ({"num_code_groups": None}, "needs a whole number as num_code_groups"),
    "ids": ({"codec_bos_id": 5000}, "names ids outside its vocabulary"),
    "speakers": ({"speaker_id": {}}, "names no speakers"),
    "speaker": ({"speaker_id": {"ethan": "x"}}, "needs a whole number as ethan, not 'x'"),
}


@pytest.mark.parametrize("fields, message", TALKER_FAULTS.values(), ids=TALKER_FAULTS)
def test_a_talker_that_contradicts_itself_is_named(directory: Path, fields: Fields, message: str) -> None:
    change(directory, lambda data: data["talker_config"].update(fields))
    with pytest.raises(ModelError, match=message):
        read_talker_config(directory)


CODE2WAV_FAULTS: dict[str, tuple[Fields, str]] = {
    "rates": ({"upsample_rates": "8"}, "needs a list of whole numbers as upsample_rates"),
    "rate": ({"upsampling_ratios": [2, 0]}, "needs a list of whole numbers as upsampling_ratios"),
    "halves": ({"decoder_dim": 2}, "2 channels cannot be halved 2 times"),
    "window": ({"sliding_window": 0}, "Code2Wav's window is 0: it must be positive"),
    "heads": ({"num_key_value_heads": 3}, "2 heads of 16 numbers over 3"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
}


@pytest.mark.parametrize("fields, message", CODE2WAV_FAULTS.values(), ids=CODE2WAV_FAULTS)
def test_sizes_of_code2wav_that_no_model_can_have(directory: Path, fields: Fields, message: str) -> None:
    change(directory, lambda data: data["code2wav_config"].update(fields))
    with pytest.raises(ModelError, match=message):
        read_code2wav_config(directory)


@pytest.mark.parametrize(
    "name, load",
    [
        ("talker.code_predictor.lm_head.1.weight", omni_talker),
        ("talker.hidden_projection.linear_fc2.bias", omni_talker),
        ("talker.model.layers.1.mlp.shared_expert_gate.weight", omni_talker),
        ("talker.codec_head.weight", omni_talker),
        ("thinker.model.embed_tokens.weight", omni_talker),
        ("code2wav.decoder.1.block.2.act1.alpha", omni_code2wav),
    ],
)
def test_a_missing_tensor_and_one_of_another_shape_are_named(
    directory: Path, name: str, load: Callable[[Path], Any]
) -> None:
    file = directory / "model.safetensors"
    whole = load_file(file)
    kept = {one: tensor for one, tensor in whole.items() if one != name}
    short = name.split(".", 2)[2] if name.startswith("talker.code_predictor") else name.split(".")[-2]
    save_file(kept, file)
    with pytest.raises(ModelError, match=f"{'lm_head' if 'codec_head' in name else short}"):
        load(directory)
    save_file(kept | {name: torch.zeros(3, 2)}, file)
    with pytest.raises(ModelError):
        load(directory)


def test_a_directory_without_the_tensors_of_code2wav(directory: Path) -> None:
    file = directory / "model.safetensors"
    save_file({name: one for name, one in load_file(file).items() if not name.startswith("code2wav.")}, file)
    with pytest.raises(ModelError, match=r"holds no tensors code2wav\.\*, so this part"):
        code2wav_checkpoint(directory, read_code2wav_config(directory))


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 3), st.floats(), st.text(max_size=3), st.just([]), st.just({}),
    st.lists(st.integers(-2, 2), max_size=2),
)  # fmt: skip


@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_anywhere_is_read_or_refused_by_a_sentence(source: Path, tmp_path: Path, data: st.DataObject) -> None:
    fields = json.loads((source / "config.json").read_text())
    place = fields
    for _ in range(3):
        key = data.draw(st.sampled_from(sorted(place)))
        if isinstance(place[key], dict) and place[key] and data.draw(st.booleans()):
            place = place[key]
            continue
        place[key] = data.draw(ANYTHING)
        break
    (tmp_path / "config.json").write_text(json.dumps(fields))
    for read in (read_config, read_talker_config, read_code2wav_config):
        try:
            read(tmp_path)
        except ModelError as error:
            assert "\n" not in str(error)
