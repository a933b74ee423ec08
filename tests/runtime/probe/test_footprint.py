# SPDX-License-Identifier: Apache-2.0
"""The memory that a launch would take, compared with what is free."""

import re
from dataclasses import replace
from pathlib import Path

import gguf
import pytest
from safetensors.torch import load_file
from tiny_gguf import write_tiny_gguf
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.probe import footprint as module
from pontil.runtime.probe.footprint import MemoryDemand, RankLayout, check_memory, draft_footprint, footprint
from pontil.runtime.probe.host_memory import FreeMemory

DEMAND = MemoryDemand("auto", "auto", "none", None, None, 16, [["cpu"]], {})
# Bytes of a token: 2 layers, keys and values, 2 heads of 16, float32.
TOKEN_BYTES = 2 * 2 * 2 * 16 * 4


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    write_tiny_llama(tmp_path / "tiny")
    return tmp_path / "tiny"


def test_weights_are_what_the_files_hold(tiny: Path) -> None:
    tensors = load_file(tiny / "model.safetensors")
    stored = sum(tensor.numel() for tensor in tensors.values())
    config = read_config(tiny)
    assert footprint(tiny, config, DEMAND).weights == 4 * stored
    assert footprint(tiny, config, replace(DEMAND, dtype="bfloat16")).weights == 2 * stored
    # Products in bytes, with a scale for each output; embedding and norms stay.
    products = [one for name, one in tensors.items() if one.ndim == 2 and "embed" not in name]
    rounded = sum(one.numel() for one in products)
    int8 = footprint(tiny, config, replace(DEMAND, dtype="bfloat16", quantization="int8"))
    assert int8.weights == 2 * (stored - rounded) + rounded + 4 * sum(len(one) for one in products)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, 2 * 16 * TOKEN_BYTES),
        ({"max_model_len": 500}, 33 * 16 * TOKEN_BYTES),
        ({"max_model_len": 500, "block_size": 32}, 17 * 32 * TOKEN_BYTES),
        ({"dtype": "bfloat16"}, 16 * TOKEN_BYTES),
        # 16 numbers and their scale in 20 bytes.
        ({"kv_cache_dtype": "int8"}, 2 * 16 * 2 * 2 * 2 * 20),
        ({"dtype": "bfloat16", "kv_cache_dtype": "fp8"}, 2 * 16 * 2 * 2 * 2 * 20),
        ({"kv_cache_memory": 12345}, 12345),
    ],
)
def test_the_cache_holds_one_sequence(tiny: Path, changes: dict[str, int], size: int) -> None:
    assert footprint(tiny, read_config(tiny), replace(DEMAND, **changes)).kv == size  # type: ignore[arg-type]


def test_a_gguf_files_products_are_packed_and_its_embedding_stays_as_it_is(tiny: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", tiny, read_config(tiny), kind=gguf.GGMLQuantizationType.Q8_0)
    config, demand = read_config(path), replace(DEMAND, quantization="gguf", dtype="bfloat16")
    tensors = load_file(tiny / "model.safetensors")
    products = sum(one.numel() for name, one in tensors.items() if one.ndim == 2 and "embed" not in name)
    embedding = sum(one.numel() for name, one in tensors.items() if "embed" in name)
    # Blocks of 32 numbers have 34 bytes in the file.
    others = 2 * (sum(one.numel() for one in tensors.values()) - products - embedding) + embedding * 34 // 32
    assert footprint(path, config, demand).weights == others + products * 9 // 8
    assert footprint(path, config, demand, RankLayout(2)).weights == others + products * 9 // 16


def test_a_gguf_file_is_counted_with_its_own_types_where_it_is_served_so(tiny: Path, tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "x.gguf", tiny, read_config(tiny), kind=gguf.GGMLQuantizationType.Q8_0)
    config, demand = read_config(path), replace(DEMAND, dtype="bfloat16")
    own, none, auto = (replace(demand, quantization=name) for name in ("gguf", "none", "auto"))
    assert footprint(path, config, auto) == footprint(path, config, own) != footprint(path, config, none)
    assert footprint(path, config, replace(auto, has_kernels=False)) == footprint(path, config, none)
    assert footprint(path, config, auto, on_host=False).weights < footprint(path, config, none, on_host=False).weights
    assert footprint(tiny, config, auto) == footprint(tiny, config, none)


def test_workers_on_the_cpu_share_its_memory(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = footprint(tiny, read_config(tiny), DEMAND).total
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(2 * one, 9 * one))
    (line,) = check_memory(tiny, replace(DEMAND, workers=[["cpu"]] * 2))
    assert re.fullmatch(
        r"cpu: [\d.]+ [MG]iB or more for 2 at once, [\d.]+ [MG]iB are left; each .* of the process", line
    )
    with pytest.raises(ModelError) as refusal:
        check_memory(tiny, replace(DEMAND, workers=[["cpu"]] * 3))
    assert "the model tiny is too large: 3 workers with" in str(refusal.value)
    assert "its control group (limit" in str(refusal.value) and "--role mixed" in str(refusal.value)


def test_each_gpu_has_its_own_and_an_unknown_one_is_not_judged(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = footprint(tiny, read_config(tiny), DEMAND, on_host=False).total
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(0))
    on_gpus = replace(DEMAND, workers=[["cuda:0"], ["cuda:1"]], gpu_memory={"cuda:0": one})
    check_memory(tiny, on_gpus)
    with pytest.raises(ModelError, match=r"a worker with .* needs .*, and cuda:1 has 0 MiB left: divide"):
        check_memory(tiny, replace(on_gpus, gpu_memory={"cuda:0": one, "cuda:1": 1}))


def test_a_tier_takes_memory_of_the_host(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = footprint(tiny, read_config(tiny), DEMAND).total
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(one + (4 << 30)))
    check_memory(tiny, replace(DEMAND, kv_tier_memory=4 << 30))
    with pytest.raises(ModelError, match=r"and 5.0 GiB of --kv-tier needs 5.2 GiB, .* or lower --kv-tier, --kv-cache"):
        check_memory(tiny, replace(DEMAND, kv_tier_memory=5 << 30))
    on_gpus = replace(DEMAND, workers=[["cuda:0"], ["cuda:1"]], gpu_memory={"cuda:0": one})
    check_memory(tiny, replace(on_gpus, kv_tier_memory=2 << 30))
    with pytest.raises(
        ModelError, match=r"2 workers with 3.0 GiB of --kv-tier each need 6.0 GiB, and this machine has"
    ):
        check_memory(tiny, replace(on_gpus, kv_tier_memory=3 << 30))


def test_a_rank_holds_its_part_and_what_every_rank_holds(tiny: Path) -> None:
    config = read_config(tiny)
    one, half = (footprint(tiny, config, DEMAND, RankLayout(ranks)) for ranks in (1, 2))
    whole = 4 * config.hidden_size * (config.vocab_size + 2 * config.num_layers + 1)
    assert half.weights - whole == (one.weights - whole) / 2 and half.kv == one.kv / 2
    # Of its two KV heads four ranks hold one each.
    quarter = footprint(tiny, config, DEMAND, RankLayout(4))
    assert quarter.kv == half.kv and (one.weights - whole) / 4 < quarter.weights - whole < half.weights - whole


def test_the_ranks_of_a_worker_fit_where_it_would_not(tiny: Path) -> None:
    one, half = (footprint(tiny, read_config(tiny), DEMAND, RankLayout(ranks), on_host=False).total for ranks in (1, 2))
    two_gpus = replace(DEMAND, gpu_memory={"cuda:0": half, "cuda:1": half})
    assert half < one
    with pytest.raises(ModelError, match="a worker with .* divide it over more GPUs"):
        check_memory(tiny, replace(two_gpus, workers=[["cuda:0"]]))
    check_memory(tiny, replace(two_gpus, workers=[["cuda:0", "cuda:1"]]))
    little = replace(two_gpus, workers=[["cuda:0", "cuda:1"]], gpu_memory={"cuda:0": half, "cuda:1": half - 1})
    with pytest.raises(ModelError, match=r"a rank with .* needs .*, and cuda:1 has"):
        check_memory(tiny, little)
    with pytest.raises(ModelError, match=r"2 ranks with .* or less each need"):
        check_memory(tiny, replace(two_gpus, workers=[["cuda:0", "cuda:1"], ["cuda:1"]]))


def test_a_model_that_cannot_be_divided_so_is_refused_before_anything_starts(tiny: Path) -> None:
    with pytest.raises(ModelError, match="cannot be divided over 3 devices .* heads"):
        check_memory(tiny, replace(DEMAND, workers=[["cpu"] * 3]))


def test_without_workers_no_model_is_read(tmp_path: Path) -> None:
    check_memory(tmp_path / "none", replace(DEMAND, workers=[]))


def test_what_no_worker_could_do_is_refused_before_one_starts(tiny: Path) -> None:
    with pytest.raises(ModelError, match="--block-size 17"):
        check_memory(tiny, replace(DEMAND, block_size=17))
    with pytest.raises(ModelError, match="--kv-cache-dtype bfloat16 is not possible with --dtype float32: choose auto"):
        check_memory(tiny, replace(DEMAND, kv_cache_dtype="bfloat16"))


def test_a_draft_model_is_part_of_what_must_fit(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = read_config(tiny)
    one, demand = footprint(tiny, config, DEMAND).total, replace(DEMAND, workers=[["cpu"]] * 2, drafting=[False, True])
    draft = draft_footprint(tiny, tiny, DEMAND)
    assert draft.process == 0 and draft.total < 1 << 20
    both = one + draft.weights + draft.kv
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(one + both))
    check_memory(tiny, demand, tiny)
    monkeypatch.setattr(module, "host_room", lambda: FreeMemory(one + both - 1))
    check_memory(tiny, demand)
    with pytest.raises(ModelError, match="2 workers with .* or less each need"):
        check_memory(tiny, demand, tiny)
    # A given size of the KV cache is for both models.
    given = replace(DEMAND, kv_cache_memory=12345)
    assert draft_footprint(tiny, tiny, given).kv == 0 and draft.kv == footprint(tiny, config, DEMAND).kv
    assert (
        draft_footprint(tiny, tiny, replace(DEMAND, quantization="gguf")).weights
        == footprint(tiny, config, DEMAND).weights
    )


def test_data_parallel_ranks_hold_a_share_of_the_experts_and_all_else(tmp_path: Path) -> None:
    write_tiny_deepseek(tmp_path)
    config, tensors = read_config(tmp_path), load_file(tmp_path / "model.safetensors")
    experts = sum(one.numel() for name, one in tensors.items() if ".experts." in name)
    others = sum(one.numel() for one in tensors.values()) - experts
    whole = footprint(tmp_path, config, DEMAND)
    shared = footprint(tmp_path, config, DEMAND, RankLayout(4, data_parallel=True))
    assert whole.weights == 4 * (others + experts) and shared.weights == 4 * (others + experts // 4)
    assert shared.kv == whole.kv
    demand = replace(DEMAND, workers=[["cpu"], ["cpu"] * 3], data_parallel=[False, True])
    with pytest.raises(ModelError, match="3 devices cannot have equal shares of the model's"):
        check_memory(tmp_path, demand)
