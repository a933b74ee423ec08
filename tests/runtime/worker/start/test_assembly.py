# SPDX-License-Identifier: Apache-2.0
"""A worker's choice of kernels and weights, and its error when they are not available."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import gguf
import kernels
import pytest
import torch
from random_gguf import SHAPES, write_random_gguf
from seat_world import BLOCK, FormulaRunner, formula
from tiny import drain, sequence
from tiny_gguf import write_tiny_gguf
from tiny_latent import write_tiny_deepseek
from tiny_llama import write_tiny_llama
from workers import DEFAULTS, PromptWorker, Silent, open_worker

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.gpu_ops.kernels import kernel_set
from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.products.linear import Linear
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.pool import BlockPool
from pontil.runtime.cache.storage import KVStorage
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import open_checkpoint
from pontil.runtime.loaders.config import read_config
from pontil.runtime.models.layers.decoder import Decoder
from pontil.runtime.models.layers.experts import Experts
from pontil.runtime.wire.compatibility import objection
from pontil.runtime.worker.start import assembly, loading
from pontil.runtime.worker.start.loading import name_of_kernels
from pontil.runtime.worker.start.weights_progress import STEP, told


def opened(model: Path, folder: Path, **settings: Any) -> PromptWorker:
    folder.mkdir(exist_ok=True)
    worker = open_worker(model, folder, "mixed:0", "mixed", **settings)
    worker.close()
    return worker


def test_kernels_where_they_fit_and_torch_elsewhere(model: Path, tmp_path: Path) -> None:
    library = kernels.opened()
    assert opened(model, tmp_path).link.links[0].hello.kernels == library.name
    assert opened(model, tmp_path, kernels="torch").link.links[0].hello.kernels == "torch"
    assert opened(model, tmp_path, kernels="generic").link.links[0].hello.kernels != library.name
    write_tiny_llama(tmp_path / "odd", head_dim=8)
    assert opened(tmp_path / "odd", tmp_path).link.links[0].hello.kernels == "torch"
    with pytest.raises(ModelError, match="--kernels torch"):
        opened(tmp_path / "odd", tmp_path, kernels="generic")


def test_what_computes_has_a_name_on_every_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """CPUs and GPUs round differently, and so do different GPUs."""
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"NVIDIA H20{device.index}")
    assert name_of_kernels(torch.device("cuda:0"), None) == "torch/cuda:NVIDIA H200"
    assert name_of_kernels(torch.device("cuda:0"), None, True) == "torch/cuda:NVIDIA H200 deterministic"
    others = ("auto", "draws=flashinfer", "products=torch")
    named = name_of_kernels(torch.device("cuda:0"), None, others=others)
    assert named == "torch/cuda:NVIDIA H200 draws=flashinfer products=torch"
    assert name_of_kernels(torch.device("cpu"), None) == "torch"
    assert name_of_kernels(torch.device("cpu"), kernels.opened()) == kernels.opened().name


class SecondOfTwo(SingleRank):
    """Rank 1 of two, as long as nothing is computed."""

    rank, size = 1, 2


@pytest.mark.parametrize(("arithmetic", "named"), [("exact", ""), ("fast", " row-parallel/2")])
def test_ranks_that_add_parts_of_sums_are_other_kernels(tmp_path: Path, arithmetic: str, named: str) -> None:
    shape = write_tiny_llama(tmp_path)
    config = WorkerConfig(
        "w", "mixed", "cpu", (0,), str(tmp_path), "m", "c", "p", kernels="torch", rank=1, ranks=2,
        tensor_parallel_arithmetic=arithmetic,
    )  # fmt: skip
    part = loading.load(config, Silent(), lambda *given: SecondOfTwo())
    assert part.kernels == f"torch{named}" and isinstance(part.model, Decoder)
    down = part.model.blocks[0].feed_forward.linears[-1]
    assert isinstance(down, Linear)
    divided, whole = (down.in_features, shape.intermediate_size), (down.out_features, shape.hidden_size)
    assert [2 * some == of_all for some, of_all in (divided, whole)] == [bool(named), not named]
    assert not replace(config, ranks=1, rank=0).row_parallel


def test_rows_travel_to_experts_where_there_are_some(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "dense")
    write_tiny_deepseek(tmp_path / "mixture", moe_intermediate_size=32)
    config = WorkerConfig(
        "w", "mixed", "cpu", (0,), str(tmp_path / "dense"), "m", "c", "p", kernels="torch", rank=1, ranks=2,
        expert_parallel=True,
    )  # fmt: skip
    mixture = replace(config, model=str(tmp_path / "mixture"))
    part = loading.load(mixture, Silent(), lambda *given: SecondOfTwo())
    assert part.kernels == "torch" and isinstance(part.model, Decoder)
    experts = part.model.blocks[1].feed_forward
    assert isinstance(experts, Experts) and experts.dispatch is not None and experts.own == range(4, 8)
    with pytest.raises(ModelError, match="this model has no experts, and --expert-parallel shares them out"):
        loading.load(config, Silent(), lambda *given: SecondOfTwo())
    with pytest.raises(ModelError, match="this model has no experts"):
        loading.load(replace(config, graph="tiny-speech", node="llm"), Silent(), lambda *given: SecondOfTwo())
    loading.load(replace(config, ranks=1, rank=0), Silent(), lambda *given: SingleRank())


def test_kernels_that_cannot_be_had(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> Path:
        raise KernelError("no C++ compiler is installed")

    monkeypatch.setattr(kernel_set, "build", refuse)
    assert opened(model, tmp_path).link.links[0].hello.kernels == "torch"
    with pytest.raises(ModelError, match="--kernels generic is not possible: no C"):
        opened(model, tmp_path, kernels="generic")
    with pytest.raises(ModelError, match="--quantization int8 needs"):
        opened(model, tmp_path, quantization="int8", dtype="bfloat16")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"quantization": "int8"}, "needs a CPU's kernels and bfloat16"),
        ({"quantization": "int8", "dtype": "bfloat16", "kernels": "torch"}, "needs a CPU's kernels and bfloat16"),
        ({"quantization": "gguf", "dtype": "bfloat16"}, "needs a GGUF file"),
        ({"quantization": "int3", "dtype": "bfloat16"}, "not known"),
    ],
)
def test_quantizations_that_cannot_be(model: Path, tmp_path: Path, settings: dict[str, object], says: str) -> None:
    kernels.opened()
    with pytest.raises(ModelError, match=says):
        opened(model, tmp_path, **settings)


def test_another_quantization_rounds_differently(model: Path, tmp_path: Path) -> None:
    kernels.opened()
    plain = opened(model, tmp_path, dtype="bfloat16").link.links[0].hello
    other = opened(model, tmp_path, dtype="bfloat16", quantization="int8").link.links[0].hello
    assert other.kernels == f"{plain.kernels} int8"
    assert "--quantization" in str(objection(other, plain))


def gguf_of(model: Path, folder: Path, kind: gguf.GGMLQuantizationType) -> Path:
    """The model as a GGUF file, with a vocabulary that can be read."""

    def letters(writer: gguf.GGUFWriter) -> None:
        writer.add_tokenizer_model("gpt2")
        writer.add_token_list([*"ab", "ab"])
        writer.add_token_types([1, 1, 1])
        writer.add_token_merges(["a b"])

    return write_tiny_gguf(folder / "x.gguf", model, read_config(model), kind=kind, vocabulary=letters)


@pytest.mark.parametrize(
    ("settings", "quantization"),
    [
        ({}, " gguf"),
        ({"quantization": "none"}, ""),
        ({"quantization": "int8"}, " int8"),
        ({"dtype": "float32"}, ""),
        ({"kernels": "torch"}, ""),
    ],
)
def test_a_gguf_file_is_served_with_its_own_types_where_kernels_multiply_them(
    model: Path, tmp_path: Path, settings: dict[str, object], quantization: str
) -> None:
    path = gguf_of(model, tmp_path, gguf.GGMLQuantizationType.Q4_0)
    name = opened(path, tmp_path / "run", **settings).link.links[0].hello.kernels
    assert name == f"{settings.get('kernels', kernels.opened().name)}{quantization}"


def test_a_gguf_file_of_floats_is_as_one_that_is_not_quantized(model: Path, tmp_path: Path) -> None:
    path = gguf_of(model, tmp_path, gguf.GGMLQuantizationType.F16)
    assert opened(path, tmp_path / "run").link.links[0].hello.kernels == kernels.opened().name


@pytest.mark.parametrize("cells", ["int8", "fp8"])
def test_a_cache_of_8_bits_holds_almost_twice_as_much_as_one_of_16(model: Path, tmp_path: Path, cells: str) -> None:
    # A head of 16 takes 32 bytes in 16 bits, and 20 with its scale.
    plain = opened(model, tmp_path, dtype="bfloat16", kernels="torch")
    small = opened(model, tmp_path, dtype="bfloat16", kernels="torch", kv_cache_dtype=cells)
    assert small.machine.layout.block_bytes * 32 == plain.machine.layout.block_bytes * 20
    assert small.machine.pool.num_blocks == plain.machine.pool.num_blocks * 32 // 20
    assert (plain.link.links[0].hello.kv_cache_dtype, small.link.links[0].hello.kv_cache_dtype) == ("auto", cells)
    assert plain.link.links[0].hello.dtype == small.link.links[0].hello.dtype == "bfloat16"
    assert (
        opened(model, tmp_path, dtype="bfloat16", kernels="torch", kv_cache_dtype="bfloat16")
        .link.links[0]
        .hello.kv_cache_dtype
        == "auto"
    )


def test_a_cache_of_another_type_than_the_model_is_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="--kv-cache-dtype float16 is not possible with --dtype bfloat16: choose auto"):
        opened(model, tmp_path, dtype="bfloat16", kv_cache_dtype="float16")


@pytest.mark.parametrize("fails", [lambda *_: torch.empty(1 << 55), lambda *_: bytearray(1 << 55)])
def test_memory_that_runs_out_is_said(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Callable[..., object]
) -> None:
    monkeypatch.setattr(loading, "build_model", fails)
    with pytest.raises(ModelError, match="does not fit the memory of cpu: choose a smaller one"):
        opened(model, tmp_path)


def test_another_fault_is_not_taken_for_it(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "build_model", lambda *_: torch.ones(2) @ torch.ones(3))
    with pytest.raises(RuntimeError, match="size"):
        opened(model, tmp_path)


class AssemblyListener(Silent):
    """A reporter that remembers the progress texts."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def progress(self, text: str, *, waits: bool = False) -> None:
        self.heard.append(text)


def test_a_start_tells_how_far_it_has_come(model: Path, tmp_path: Path) -> None:  # G2
    listener = AssemblyListener()
    config = WorkerConfig(
        "mixed:0", "mixed", "cpu", (0,), str(model), "tiny", f"ipc://{tmp_path}/c", f"ipc://{tmp_path}/p",
        **DEFAULTS,  # type: ignore[arg-type]
    )  # fmt: skip
    assembly.assemble(config, listener)
    read = [int(text.split()[2]) for text in listener.heard if text.startswith("reading weights")]
    assert read[-1] == 100 and all(later - earlier >= STEP for earlier, later in pairwise(read[:-1]))
    assert listener.heard[-1] == "warming up"


def test_parts_of_a_weight_count_once(tmp_path: Path) -> None:
    """Weights of k-quants have four of them."""
    shape = replace(SHAPES["8b"], layers=1, hidden=256, inner=256, heads=2, kv_heads=1, vocabulary=300)
    checkpoint = open_checkpoint(write_random_gguf(tmp_path / "small.gguf", shape))
    heard: list[str] = []
    names = [name for name, _ in told(checkpoint.levels(torch.float32), len(checkpoint.places), heard.append)]
    assert len(names) > 2 * len(checkpoint.places) and heard[-1] == "reading weights, 100 %"


def test_a_worker_is_equipped_without_weights() -> None:
    """A stand-in for the runner computes in a worker's own engine."""
    config = WorkerConfig("mixed:0", "mixed", "cpu", (0,), "none", "none", "", "", block_size=BLOCK)
    layout, pool = KVLayout(BLOCK, 1, 1, 8, "float32"), BlockPool(20)
    engine = assembly.equip(config, FormulaRunner(), KVStorage(layout, 20, torch.device("cpu")), pool)
    engine.add(sequence("a", [5] * 20, 3))
    assert drain(engine) == {"a": [formula([5] * 20, 0, position) for position in (20, 21, 22)]}
