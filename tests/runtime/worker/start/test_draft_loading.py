# SPDX-License-Identifier: Apache-2.0
"""A draft layer is multiplied as its files have it, in the memory that a plan counts."""

from pathlib import Path

import kernels
import pytest
from gguf import GGMLQuantizationType
from guessing_layers import made, write_file
from quantized_directory import FORMS, quantize
from tiny import build, draft_model, reference
from tiny_draft_layers import write_eagle_head, write_mtp_hybrid
from tiny_llama import write_tiny_llama
from workers import Silent

from pontil.gpu_ops.collectives.communicator import SingleRank
from pontil.gpu_ops.kernels.linear import matrix_of
from pontil.gpu_ops.kernels.weights.matrix import Matrix
from pontil.gpu_ops.kernels.weights.structures import BFLOAT16, BYTES, FLOAT32, NIBBLES
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.loaders.draft_layers import find_draft_layer
from pontil.runtime.probe.footprint import MemoryDemand, draft_footprint
from pontil.runtime.worker.start.draft_loading import FIRST_READ, load_draft_layer, warm_up
from pontil.runtime.worker.start.loading import load


def loaded(target: Path, guesses: str | Path, quantization: str) -> list[Matrix]:
    """Load a model and what guesses for it, and return the latter's matrices."""
    config = WorkerConfig(
        name="decode:0", role="decode", device="cpu", cores=(0,), model=str(target), served_model_name="tiny",
        control="", peer_endpoint="", cache_dir=str(kernels.CACHE), quantization=quantization, kv_cache_memory=1 << 20,
        dtype="bfloat16",
    )  # fmt: skip
    part = load(config, Silent(), lambda *given: SingleRank())
    source = find_draft_layer(target, guesses)
    assert source is not None
    draft = load_draft_layer(config, source, part, Silent())
    return [matrix_of(product) for product in draft.model.linears if product not in part.model.linears]


def test_the_layer_of_a_gguf_file_keeps_its_numbers(tmp_path: Path) -> None:
    file = write_file(tmp_path / "x.gguf", *made("deepseek_v3", by_kernels=True), kind=GGMLQuantizationType.MXFP4)
    router, *others = sorted(loaded(file, "mtp", "auto"), key=lambda one: one.kind)
    assert router.kind == FLOAT32 and {one.kind for one in others} == {NIBBLES}


@pytest.mark.parametrize(
    ("form", "quantization", "kind"),
    [("gptq-8", "auto", BYTES), ("gptq-8", "none", BFLOAT16), ("", "auto", BFLOAT16), ("", "int8", BYTES)],
)
def test_a_layer_keeps_the_numbers_of_its_files(tmp_path: Path, form: str, quantization: str, kind: int) -> None:
    target, head = tmp_path / "target", tmp_path / "head"
    write_tiny_llama(target, dtype="bfloat16")
    write_eagle_head(head, target)
    if form:
        quantize(head, *FORMS[form], kept=("embed", "head", "norm"))
    own = loaded(target, head, quantization)
    assert own and {one.kind for one in own} == {kind}
    check_footprint(target, head, quantization, own)


@pytest.mark.parametrize(("quantization", "kinds"), [("auto", {BFLOAT16, FLOAT32}), ("int8", {BYTES, FLOAT32})])
def test_a_hybrid_models_layer_is_packed_like_its_own(tmp_path: Path, quantization: str, kinds: set[int]) -> None:
    write_mtp_hybrid(tmp_path / "target", dtype="bfloat16")
    own = loaded(tmp_path / "target", "mtp", quantization)
    assert {one.kind for one in own} == kinds
    # Few outputs, as of a router so small, are padded to a panel.
    check_footprint(tmp_path / "target", Path("mtp"), quantization, [one for one in own if one.kind != FLOAT32])


def check_footprint(target: Path, guesses: Path, quantization: str, own: list[Matrix]) -> None:
    taken = sum(each.nbytes for one in own for each in (one.data, one.scales) if each is not None)
    demand = MemoryDemand("auto", "auto", quantization, None, 1 << 20, 16, [["cpu"]], {})
    said = draft_footprint(target, guesses, demand)
    assert said.weights == pytest.approx(taken, rel=0.1) and said.kv == 0 and said.model == "target"


@pytest.mark.parametrize(("blocks", "read"), [(200, FIRST_READ), (4, 30), (3, 14)])
def test_a_draft_model_begins_with_a_text_as_long_as_there_is_room_for(blocks: int, read: int) -> None:
    """Steps of one and two rows alone say next to nothing of what a text takes."""
    model = draft_model(build(reference()), blocks)
    for _ in range(2):
        assert [rows for rows, _ in warm_up(model)] == [read, 1]
        assert not model.followers and model.pool.available == blocks - 1
