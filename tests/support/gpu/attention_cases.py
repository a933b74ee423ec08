# SPDX-License-Identifier: Apache-2.0
"""Paged attention of generated positions and of prompts."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import torch
from ladder import Budget, KernelCase, Results
from pages import Heads, Scene, Span, contents

from pontil.gpu_ops.kv.attention import write_kv
from pontil.gpu_ops.kv.cells import encode
from pontil.gpu_ops.kv.device_attention import DeviceAttention
from pontil.gpu_ops.kv.device_tile import DeviceTile
from pontil.gpu_ops.parameters.cells import LARGEST, row_cells
from pontil.gpu_ops.triton import decode_attention, paged_kv
from pontil.gpu_ops.triton.decode_attention import DecodeTiles

CPU = torch.device("cpu")
FLOAT, HALF, BRAIN = torch.float32, torch.float16, torch.bfloat16
WHOLE, FLOAT8 = torch.int8, torch.float8_e4m3fn
TOLERANCES = {FLOAT: 2e-6, HALF: 2e-3, BRAIN: 1.2e-2}
SMALL = DecodeTiles(keys=16, heads=16, strip=32, most=3)


@contextmanager
def small_strips(programs: int = 1024, parts_bytes: int = 1 << 20) -> Iterator[None]:
    """Strips of which short texts have several, computed by so many programs and so many rows at a time."""
    with (
        patch.object(decode_attention, "decode_tiles", lambda *_: SMALL),
        patch.object(decode_attention, "PROGRAMS", programs),
        patch.object(decode_attention, "PARTS_BYTES", parts_bytes),
    ):
        yield


def case(name: str, shape: Heads, *spans: Span) -> KernelCase:
    """A case beside torch's operations."""
    scene = Scene(shape, spans, name.startswith("decode"))

    def call(device: torch.device) -> Results:
        with small_strips():
            return scene.on_device(device)

    # Beside cells of 8 bits float16 is weighed in bfloat16.
    kind = BRAIN if shape.cells and shape.dtype == HALF else shape.dtype
    return KernelCase(name, call, scene.by_torch, TOLERANCES[kind], compiled=False)


def rows_of(scene: Scene, device: torch.device) -> dict[tuple[int, int], torch.Tensor]:
    return dict(zip(scene.places, scene.on_device(device)[0], strict=False))


def company(name: str, shape: Heads, together: tuple[Span, ...], *tiles: tuple[Span, ...]) -> KernelCase:
    """Rows have the same bits in one tile and in these, whose padding, tables and programs differ."""
    scene = Scene(shape, together, name.startswith("decode"), padding=0)

    def call(device: torch.device) -> Results:
        rows: dict[tuple[int, int], torch.Tensor] = {}
        for number, spans in enumerate(tiles):
            with small_strips(programs=1, parts_bytes=1):
                rows |= rows_of(replace(scene, spans=spans, padding=number + 1, spare=100 * number), device)
        return tuple(rows[place] for place in scene.places)

    def whole(device: torch.device) -> Results:
        with small_strips():
            rows = rows_of(scene, device)
        return tuple(rows[place] for place in scene.places)

    return KernelCase(name, call, tolerance=0.0, compiled=False, whole=whole)


def written(name: str, cells: torch.dtype) -> KernelCase:
    """Rows that meet every rounding to the cells' type, and rows of no numbers, become the same cells and scales."""
    most, near = LARGEST[cells], torch.linspace(-1, 1, 66 * 30).view(66, 30)
    steps = torch.arange(0, 128, dtype=torch.uint8).view(torch.float8_e4m3fn).float().nan_to_num(448.0)
    halves = (steps[1:] + steps[:-1])[:120].view(4, 30) / 2 if cells == FLOAT8 else near[:4] * 127 // 0.5 / 2
    whole = torch.cat((near[:4] * most, halves, -halves, near * 3e-5, near * 1e30, near[:2] * 1e-32))
    # With the largest cell itself among them rows are not scaled.
    rows = torch.cat((whole, whole.new_full((len(whole), 2), most)), 1)
    rows[12:, 30:] = rows[12:, :2]
    for row, bad in zip(rows[-6:], (torch.nan, torch.inf, -torch.inf, torch.nan, torch.inf, 0.0), strict=True):
        row[5] = bad
        row[9] = -0.0
    rows[-3, 6], rows[-1] = torch.inf, 0.0

    def pool_on(device: torch.device) -> torch.Tensor:
        empty = torch.zeros(len(rows) // 8 + 1, 1, 1, 1, 8, 32)
        return encode(empty, cells).to(device)

    def slots_of(count: int) -> torch.Tensor:
        return torch.arange(count, dtype=torch.int32).flip(0)

    def call(device: torch.device) -> Results:
        pool, k = pool_on(device), rows.unsqueeze(1).to(device)
        paged_kv.write_kv(pool, 0, slots_of(len(rows)).to(device), k, None)
        return contents(pool)

    def expected() -> Results:
        pool, slots = pool_on(CPU), slots_of(len(rows)).long()
        write_kv(pool, 0, slots // 8, slots % 8, rows.unsqueeze(1), None)
        return contents(pool)

    return KernelCase(name, call, expected, tolerance=0.0, compiled=False)


NVIDIA, AMD = ("cp.async", "mma"), ("v_mfma",)
WIDE_TILES: dict[str, tuple[str, ...]] = {
    "nvidia": ("cp.async",),
    "sm_80": ("mma",),
    "sm_90a": ("wgmma",),
    "sm_100a": ("tcgen05",),
    "amd": AMD,
}


def real(name: str, shape: Heads, budget: Budget) -> KernelCase:
    """The sizes of a real model, with texts of 65,536 positions."""

    def call(device: torch.device) -> Results:
        size = (2, 2, shape.planes, shape.kv_heads, 16, row_cells(shape.dim, shape.stored))
        pool = torch.empty(size, dtype=shape.stored, device=device)
        q = torch.empty(8, shape.heads, shape.dim, dtype=shape.dtype, device=device)
        k = torch.empty(8, shape.kv_heads, shape.dim, dtype=shape.dtype, device=device)
        words = torch.zeros(8, 4096, dtype=torch.int32, device=device)
        if name.startswith("decode"):
            tile = DeviceTile(words[0], words[0], words, words[0], words[0])
        else:
            tile = DeviceTile(words[0], words[0], words, query_tiles=words[:2, :4])
        attend, v = DeviceAttention(pool, tile), None if shape.value_dim else k
        return (attend(shape.layer(0, 1.0, device), q, k, v),)

    return KernelCase(name, call, budget=budget, interpreted=False)


LLAMA = Heads(32, 8, 128, BRAIN)
QWEN = Heads(32, 4, 128, BRAIN)
GEMMA = Heads(8, 4, 256, BRAIN, window=1024)
DEEPSEEK = Heads(128, 1, 576, BRAIN, value_dim=512)
EIGHT = [(LLAMA, "llama-3-8b", WHOLE), (GEMMA, "gemma-3", FLOAT8), (DEEPSEEK, "deepseek-v3", FLOAT8)]
DECODE: dict[str, tuple[str, ...]] = {"nvidia": NVIDIA, "amd": AMD}

CASES = [
    case("decode-float32", Heads(4, 2, 64, FLOAT), (0, 0, 1), (1, 64, 1), (2, 130, 1)),
    case("decode-float32-window-sinks", Heads(3, 1, 80, FLOAT, 33, True), (0, 5, 1), (1, 70, 2)),
    case("decode-bfloat16", Heads(2, 2, 192, BRAIN), (1, 40, 1)),
    case("decode-float16-latent", Heads(20, 1, 40, HALF, value_dim=32), (0, 35, 1)),
    case("prompt-float32", Heads(4, 2, 32, FLOAT), (0, 0, 70), (1, 130, 3)),
    case("prompt-float16-window-sinks", Heads(2, 1, 96, HALF, 33, True), (0, 60, 10), (1, 5, 1)),
    case("prompt-bfloat16", Heads(3, 1, 256, BRAIN), (0, 60, 5)),
    case("prompt-bfloat16-latent", Heads(3, 1, 40, BRAIN, value_dim=32), (0, 5, 30)),
    case("decode-int8-bfloat16", Heads(4, 2, 64, BRAIN, cells=WHOLE), (0, 0, 1), (1, 70, 2)),
    case("decode-fp8-float32-window-sinks", Heads(3, 1, 80, FLOAT, 33, True, cells=FLOAT8), (0, 5, 1), (1, 70, 2)),
    case("decode-fp8-float16-latent", Heads(20, 1, 40, HALF, value_dim=32, cells=FLOAT8), (0, 35, 1)),
    case("prompt-int8-float16-window-sinks", Heads(2, 1, 96, HALF, 33, True, cells=WHOLE), (0, 60, 10), (1, 5, 1)),
    case("prompt-fp8-bfloat16", Heads(3, 1, 256, BRAIN, cells=FLOAT8), (0, 60, 5)),
    case("prompt-int8-float32-latent", Heads(3, 1, 40, FLOAT, value_dim=32, cells=WHOLE), (0, 5, 30)),
    written("written-int8", WHOLE),
    written("written-fp8", FLOAT8),
    company(
        "decode-in-company", Heads(2, 1, 32, HALF, 90, True), ((0, 10, 1), (1, 130, 2), (2, 64, 1)),
        ((2, 64, 1), (0, 10, 1)), ((1, 130, 2),),
    ),
    company(
        "prompt-in-company", Heads(2, 1, 32, HALF, sinks=True), ((0, 0, 150),),
        ((1, 3, 7), (0, 0, 70)), ((0, 70, 1), (1, 60, 9)), ((0, 71, 79),),
    ),
    real("decode-llama-3-8b", LLAMA, Budget(176, 80 << 10, must_have=DECODE)),
    real("decode-qwen3-30b", QWEN, Budget(176, 80 << 10, must_have=DECODE)),
    real("decode-gemma-3", GEMMA, Budget(176, 80 << 10, must_have=DECODE)),
    real("decode-deepseek-v3", DEEPSEEK, Budget(208, 120 << 10, must_have=DECODE)),
    real("prompt-llama-3-8b", LLAMA, Budget(224, 100 << 10, must_have=WIDE_TILES)),
    real("prompt-qwen3-30b", QWEN, Budget(224, 100 << 10, must_have=WIDE_TILES)),
    real("prompt-gemma-3", GEMMA, Budget(240, 132 << 10, must_have=WIDE_TILES)),
    real("prompt-deepseek-v3", DEEPSEEK, Budget(255, 216 << 10, must_have=WIDE_TILES)),
    *(real(f"{kind}-{name}-8-bits", replace(shape, cells=cells), Budget(255, 216 << 10))
      for kind in ("decode", "prompt") for shape, name, cells in EIGHT),
]  # fmt: skip
