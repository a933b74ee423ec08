# SPDX-License-Identifier: Apache-2.0
import json
import shutil
from pathlib import Path

import pytest
import torch
from architectures import hugging_model
from safetensors.torch import load_file, save_file
from tiny_llama import write_tiny_llama
from transformers import AutoModelForCausalLM

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.loaders.facts.shards import WHOLE


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("tied", [True, False])
def test_the_same_weights_as_transformers(tmp_path: Path, shards: int, tied: bool) -> None:
    config = write_tiny_llama(tmp_path, seed=3, shards=shards, tie_word_embeddings=tied)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path).state_dict()
    ours = dict(open_checkpoint(tmp_path).tensors())
    assert sorted(ours) == sorted(tensor_shapes(config))
    assert set(theirs) - set(ours) == ({"lm_head.weight"} if tied else set())
    for name, tensor in ours.items():
        assert torch.equal(tensor, theirs[name]), name


def test_the_fingerprint_knows_weights_not_places(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "a")
    shutil.copytree(tmp_path / "a", tmp_path / "copy", copy_function=shutil.copyfile)
    write_tiny_llama(tmp_path / "other_weights", seed=1)
    write_tiny_llama(tmp_path / "other_config", rope_theta=500.0)
    a, copy, weights, config = (
        open_checkpoint(tmp_path / name).fingerprint for name in ("a", "copy", "other_weights", "other_config")
    )
    assert a == copy
    assert len({a, weights, config}) == 3


def test_missing_files(tiny: Path) -> None:
    (tiny / "model.safetensors").unlink()
    with pytest.raises(ModelError, match=r"neither model\.safetensors nor"):
        open_checkpoint(tiny)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, shards=2)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelError, match="lacks the shard model-00002-of-00002"):
        open_checkpoint(tmp_path)


def test_an_index_cannot_lead_outside(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "model", shards=2)
    (tmp_path / "outside.safetensors").touch()
    index = {"weight_map": {"model.norm.weight": "../outside.safetensors"}}
    (tmp_path / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="lacks the shard"):
        open_checkpoint(tmp_path / "model")


@pytest.mark.parametrize("kept", [0, 4, 100, 20_000])
def test_a_truncated_file(tiny: Path, kept: int) -> None:
    path = tiny / "model.safetensors"
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ModelError, match=r"damaged or cut off.*fetch it again"):
        open_checkpoint(tiny)


def test_wrong_tensors(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    whole = load_file(path)
    save_file({name: value for name, value in whole.items() if name != "model.norm.weight"}, path)
    with pytest.raises(ModelError, match=r"lacks the tensor model\.norm\.weight"):
        open_checkpoint(tiny)
    save_file(whole | {"model.norm.weight": torch.ones(3)}, path)
    with pytest.raises(ModelError, match=r"model\.norm\.weight \[3\], not \[64\]"):
        open_checkpoint(tiny)
    save_file(whole | {"model.layers.0.self_attn.q_proj.bias": torch.ones(64)}, path)
    with pytest.raises(ModelError, match=r"1 that llama does not have: model\.layers\.0\.self_attn\.q_proj\.bias"):
        open_checkpoint(tiny)
    save_file(whole | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}, path)
    assert len(dict(open_checkpoint(tiny).tensors())) == len(whole)


@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.int8, "I8"), (torch.float8_e4m3fn, "F8_E4M3"), (torch.float64, "F64")]
)
def test_numbers_that_need_more_than_themselves_are_refused(tiny: Path, dtype: torch.dtype, kind: str) -> None:
    path, name = tiny / "model.safetensors", "model.layers.0.mlp.up_proj.weight"
    whole = load_file(path)
    save_file(whole | {name: whole[name].to(dtype)}, path)
    with pytest.raises(ModelError, match=rf"stores the tensor {name} as {kind}: this version reads F32, F16, BF16"):
        open_checkpoint(tiny)
    save_file(whole | {"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8, dtype=torch.float64)}, path)
    assert len(dict(open_checkpoint(tiny).tensors())) == len(whole)


def test_every_missing_and_every_left_over_tensor_is_named(tiny: Path) -> None:
    path = tiny / "model.safetensors"
    whole = load_file(path)
    odd = {"visual.patch": torch.ones(1), "model.layers.7.mlp.gate_proj.weight": torch.ones(1)}
    gone = ("model.layers.0.mlp.up_proj.weight", "model.layers.1.mlp.up_proj.weight", "lm_head.weight")
    save_file({name: value for name, value in whole.items() if name not in gone} | odd, path)
    with pytest.raises(ModelError) as caught:
        open_checkpoint(tiny)
    assert all(name in str(caught.value) for name in (*gone, *odd))


def test_fused_experts_are_taken_apart(tmp_path: Path) -> None:
    model = hugging_model("qwen3_moe")
    model.save_pretrained(tmp_path / "hub")
    model.config.save_pretrained(tmp_path / "fused")
    save_file({name: tensor.contiguous() for name, tensor in model.state_dict().items()}, tmp_path / "fused" / WHOLE)
    hub, fused = (dict(open_checkpoint(tmp_path / name).tensors()) for name in ("hub", "fused"))
    assert sorted(hub) == sorted(fused)
    assert all(torch.equal(tensor, hub[name]) for name, tensor in fused.items())
    whole = load_file(tmp_path / "fused" / WHOLE)
    whole["model.layers.0.mlp.experts.down_proj"] = whole["model.layers.0.mlp.experts.down_proj"][:-1].clone()
    save_file(whole, tmp_path / "fused" / WHOLE)
    with pytest.raises(
        ModelError, match=r"lacks the tensors .*\.experts\.0\.down_proj.*holds 1 that qwen3_moe does not"
    ):
        open_checkpoint(tmp_path / "fused")


def test_neither_format(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ModelError, match="neither a directory"):
        open_checkpoint(tmp_path / "model.bin")


def test_a_file_of_somebody_elses_is_not_called_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors reports such a file as missing. Simulated, since tests may run as root, which may read everything."""
    write_tiny_llama(tmp_path)
    monkeypatch.setattr("os.access", lambda path, mode: Path(path).name != WHOLE)
    with pytest.raises(ModelError, match="may not be read by the user"):
        open_checkpoint(tmp_path)
