# SPDX-License-Identifier: Apache-2.0
"""Facts about models before a launch: those that are served, and those that are broken in one way or in several."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from architectures import ROUND_SIZES, hugging_config
from safetensors.torch import load_file, save_file
from tiny_adapters import write_adapter
from tiny_bert import write_tiny_bert
from tiny_gguf import write_tiny_gguf
from tiny_hybrid import write_tiny_hybrid
from tiny_latent import write_tiny_deepseek
from tiny_llama import byte_level_tokenizer, write_tiny_llama
from transformers import AutoModelForCausalLM

from pontil.gpu_ops.parameters.adapters import LowRank
from pontil.runtime.inspection.inspection import inspect_models
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.facts.shards import WHOLE

DEMAND: dict[str, Any] = {
    "dtype": "auto", "kv_cache_dtype": "auto", "quantization": "auto", "max_model_len": None,
    "kv_cache_memory": 8 << 20, "block_size": 16, "workers": [["cpu"]], "gpu_memory": {}, "has_kernels": False,
}  # fmt: skip


def inspected(path: Path | str, adapters: dict[str, str] | None = None, **changes: Any) -> dict[str, Any]:
    plan = {"demands": {str(path): DEMAND | changes}, "adapters": {str(path): adapters or {}}, "cores": [0]}
    (facts,) = inspect_models(plan, Path("/nonexistent"))
    return dict(json.loads(json.dumps(facts)))


def change_config(folder: Path, **fields: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> None:
    tensors = load_file(folder / WHOLE)
    change(tensors)
    save_file(tensors, folder / WHOLE)


@pytest.mark.parametrize("name", ["qwen2", "qwen3_moe", "gemma3_text"])
def test_architectures_are_served(name: str, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_config(hugging_config(name, ROUND_SIZES)).save_pretrained(tmp_path)
    byte_level_tokenizer().save(str(tmp_path / "tokenizer.json"))
    facts = inspected(tmp_path)
    assert not facts["faults"] and facts["architecture"] == name
    assert not facts["template"]["is_there"] and facts["speeds"]["step"] > 0
    assert facts["speeds"]["layers"] == facts["layers"] and facts["speeds"]["prompt"] > 0
    # A token goes through some experts alone, and an embedding is looked up.
    assert (facts["used"] < facts["numbers"]) == (name == "qwen3_moe")
    assert 0 < facts["taken"]["read"] < facts["taken"]["weights"]


def test_hybrids_and_latents_are_served(tmp_path: Path) -> None:
    for name, write in (("hybrid", write_tiny_hybrid), ("latent", write_tiny_deepseek)):
        write(tmp_path / name)
        byte_level_tokenizer().save(str(tmp_path / name / "tokenizer.json"))
        facts = inspected(tmp_path / name)
        assert not facts["faults"] and facts["taken"]["tokens"] > 0 and facts["speeds"]["step"] > 0


def test_a_gguf_file_is_served_as_it_is(tmp_path: Path) -> None:
    config = write_tiny_llama(tmp_path / "tiny")
    path = write_tiny_gguf(tmp_path / "tiny.gguf", tmp_path / "tiny", config)
    facts = inspected(path)
    assert "weights" not in facts["faults"] and "model" not in facts["faults"]
    dropped = write_tiny_gguf(tmp_path / "less.gguf", tmp_path / "tiny", config, drop="blk.1.attn_k.weight")
    assert "lacks the tensor model.layers.1.self_attn.k_proj.weight" in inspected(dropped)["faults"]["weights"]
    whole = path.read_bytes()
    path.write_bytes(whole[:-1000])
    assert "cut off before the end of" in inspected(path)["faults"]["weights"]
    # So many tensors and entries as no file can hold.
    path.write_bytes(whole[:8] + struct.pack("<QQ", 1 << 60, 1 << 60) + whole[24:])
    assert "is not a whole GGUF file" in inspected(path)["faults"]["model"]


def test_everything_that_is_missing_is_told_at_once(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, dtype="bfloat16")

    def change(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.0.mlp.up_proj.weight"]
        tensors["model.norm.weight"] = torch.ones(3)

    change_weights(tmp_path, change)
    (tmp_path / "tokenizer.json").unlink()
    adapters = {"fair": str(tmp_path / "none")}
    faults = inspected(tmp_path, adapters, max_model_len=9999, speculative_model="neither")["faults"]
    assert set(faults) == {"weights", "tokenizer", "the adapter fair", "context", "draft model"}
    assert "lacks the tensor model.layers.0.mlp.up_proj.weight" in faults["weights"]
    assert "model.norm.weight [3], not [64]" in faults["weights"]
    assert "fetch the model's tokenizer.json" in faults["tokenizer"]
    assert all(": " in sentence and "\n" not in sentence for sentence in faults.values())


@pytest.mark.parametrize("worker", [["cuda:0"], ["cuda:0", "cuda:1"]])
def test_an_adapter_is_tried_for_gpus_too(worker: list[str], tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "tiny")
    byte_level_tokenizer().save(str(tmp_path / "tiny" / "tokenizer.json"))
    name = "model.layers.0.self_attn.q_proj"
    sizes = {key: one.shape for key, one in load_file(tmp_path / "tiny" / WHOLE).items()}[f"{name}.weight"]
    good = LowRank(torch.ones(4, sizes[1]), torch.ones(sizes[0], 4))
    adapters = {"fair": str(write_adapter(tmp_path / "fair", {name: good}))}
    device = {"workers": [worker], "gpu_memory": dict.fromkeys(worker, 1 << 34)}
    assert not inspected(tmp_path / "tiny", adapters, **device)["faults"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "holds no JSON object"),
        ("[" * 200_000, "is not JSON"),
        ("{", "is not JSON"),
        ('{"model_type": "nobody"}', "the architecture 'nobody' is not known"),
        ('{"model_type": []}', "the architecture [] is not known"),
    ],
)
def test_a_mistaken_configuration_is_one_sentence(text: str, said: str, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    (tmp_path / "config.json").write_text(text)
    faults = inspected(tmp_path)["faults"]
    assert set(faults) == {"model"} and said in faults["model"]


def test_unsupported_fields_are_told_together(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    change_config(tmp_path, mlp_bias=True, hidden_act="gelu")
    said = inspected(tmp_path)["faults"]["model"]
    assert "mlp_bias = True" in said and "hidden_act = 'gelu'" in said


@pytest.mark.parametrize("header", [(100 << 30), 1 << 62, 50])
def test_a_damaged_file_costs_no_more_than_its_size(header: int, tmp_path: Path) -> None:
    write_tiny_llama(tmp_path)
    whole = (tmp_path / WHOLE).read_bytes()
    (tmp_path / WHOLE).write_bytes(header.to_bytes(8, "little") + whole[8:])
    assert set(inspected(tmp_path)["faults"]) == {"weights"}
    change_config(tmp_path, model_type="nobody")
    assert "damaged or cut off" in inspected(tmp_path)["faults"]["weights"]


def test_a_truncated_file_and_missing_shards_are_told(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "one")
    whole = (tmp_path / "one" / WHOLE).read_bytes()
    (tmp_path / "one" / WHOLE).write_bytes(whole[:-100])
    assert "damaged or cut off" in inspected(tmp_path / "one")["faults"]["weights"]
    write_tiny_llama(tmp_path / "two", shards=3)
    for number in (1, 3):
        (tmp_path / "two" / f"model-0000{number}-of-00003.safetensors").unlink()
    said = inspected(tmp_path / "two")["faults"]["weights"]
    assert "model-00001-of-00003" in said and "model-00003-of-00003" in said


def test_models_that_are_not_here_are_not_fetched(tmp_path: Path) -> None:
    assert inspected("owner/model") == {"name": "owner/model", "faults": {}, "unfetched": True}
    assert inspected("smollm2-135m-instruct")["unfetched"]
    assert "neither built in" in inspected(str(tmp_path / "nothing"))["faults"]["model"]


def test_a_draft_model_has_the_same_vocabulary(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "target", num_layers=3)
    write_tiny_llama(tmp_path / "draft", num_layers=1)
    facts = inspected(tmp_path / "target", speculative_model=str(tmp_path / "draft"))
    assert not facts["faults"] and facts["unfetched draft"] is None
    path = tmp_path / "draft" / "tokenizer.json"
    path.write_text(path.read_text().replace('"Ġand"', '"Ġxnd"'))
    said = inspected(tmp_path / "target", speculative_model=str(tmp_path / "draft"))["faults"]["draft model"]
    assert "another tokenizer" in said or "damaged" in said


def test_an_encoder_is_named_by_its_own_option(tmp_path: Path) -> None:
    write_tiny_bert(tmp_path)
    assert "--embedding-model" in inspected(tmp_path)["faults"]["model"]
    other = {"model": str(tmp_path), "stage": None, "own": True, "devices": ["cpu"]}
    plan = {"others": [other, other | {"scores": True}], "adapters": {}, "cores": [0]}
    embeds, scores = inspect_models(plan, tmp_path)
    assert not embeds["faults"] and "embeds texts and scores none" in scores["faults"]["weights"]


def test_memory_and_reads_are_those_of_the_files(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path, dtype="bfloat16")
    config = read_config(tmp_path)
    facts = inspected(tmp_path)
    taken = facts["taken"]
    assert taken["read"] == taken["weights"] - 2 * config.vocab_size * config.hidden_size
    # Keys and values of two layers with two heads of 16, in bfloat16.
    assert taken["token_bytes"] == 2 * 2 * 2 * 16 * 2
    assert taken["tokens"] == (8 << 20) // taken["token_bytes"] - 16
    assert facts["context_bytes"] == taken["token_bytes"] * config.max_model_len
