# SPDX-License-Identifier: Apache-2.0
"""The least memory that the workers of a launch take, known from the model's files before anything is loaded.

torch is not imported: this runs before the first worker starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from pontil.runtime.cache.layout import DTYPE_BYTES, choose_kv_dtype, layout_for
from pontil.runtime.config.worker_config import WorkerOptions
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.draft_layers import DraftLayerSource, find_draft_layer
from pontil.runtime.loaders.gguf.packed_formats import choose_quantization
from pontil.runtime.loaders.level_formats import may_have_levels
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.partition import check_division, check_shares
from pontil.runtime.probe.host_memory import NO_LIMIT, FreeMemory, gibibytes, host_room
from pontil.runtime.probe.packed_share import are_shared
from pontil.runtime.probe.weight_memory import Ranks, layer_memory, weight_memory

CPU = "cpu"
# A process that has imported torch and this package, beside the pages that it shares with others; and what it takes
# more for serving: buffers, the tokenizer, tables. Measured (docs/measurements.md).
IMPORTED_BYTES, SERVING_BYTES = 160 << 20, 64 << 20


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The layout of a worker's ranks: so many divide the model, or, `data_parallel`, its experts."""

    size: int = 1
    data_parallel: bool = False

    def check(self, config: ModelConfig) -> None:
        """Raise ModelError if a model cannot be divided so."""
        if self.data_parallel:
            check_shares(config, self.size)
        else:
            check_division(config, self.size)


ONE_RANK = RankLayout()


@dataclass(frozen=True, slots=True)
class MemoryDemand:
    """The settings that all workers of a launch share, as in WorkerConfig; for each worker its ranks' devices; and
    the free bytes of those GPUs where that is known. A worker that is `drafting` also has the draft model. Each has
    `kv_tier_memory` bytes of host memory besides. They may have packed weights once if each `shares_weights`. Ranks
    that are `row_parallel` add parts of sums, and those of each worker that is `data_parallel` divide its experts
    only. There are as many on each of `nnodes` hosts."""

    dtype: str
    kv_cache_dtype: str
    quantization: str
    max_model_len: int | None
    kv_cache_memory: int | None
    block_size: int
    workers: Sequence[Sequence[str]]
    gpu_memory: Mapping[str, int]
    speculative_model: str | None = None
    drafting: Sequence[bool] = ()
    kv_tier_memory: int = 0
    has_kernels: bool = True
    shares_weights: bool = False
    row_parallel: bool = False
    data_parallel: Sequence[bool] = ()
    nnodes: int = 1
    kv_cache_ahead_memory: int = WorkerOptions.kv_cache_ahead_memory

    @property
    def layouts(self) -> list[RankLayout]:
        """The layout of each worker's ranks."""
        ways = self.data_parallel or [False] * len(self.workers)
        return [RankLayout(self.nnodes * len(worker), way) for worker, way in zip(self.workers, ways, strict=True)]


@dataclass(frozen=True, slots=True)
class Footprint:
    """The memory of one rank of a worker on one device, in bytes: a worker on a GPU has its tier on the host. On a CPU
    a `process` needs more than weights and KV once it serves, and `loading` more than the weights at the worst moment
    before; then it has no KV yet. It maps `ahead` bytes of KV while there is plenty of memory, and does without. Of the
    weights it shares `shared` bytes with the other processes of the host that have the same `part`: the layout of the
    ranks, and which of them, or what else. The `model` is named where it does not fit."""

    weights: int
    kv: int
    tier: int = 0
    process: int = 0
    loading: int = 0
    ahead: int = 0
    shared: int = 0
    part: tuple[RankLayout, int] | str = (ONE_RANK, 0)
    model: str = ""

    @property
    def mapping(self) -> Footprint:
        """The footprint of a process that waits while another packs the shared weights, without these."""
        if not self.shared:
            return self
        return replace(
            self,
            weights=self.weights - self.shared,
            shared=0,
            process=IMPORTED_BYTES + SERVING_BYTES,
            loading=IMPORTED_BYTES,
        )

    @property
    def serving(self) -> int:
        """Bytes once it serves, with the KV that requests need."""
        return self.weights + self.kv + self.tier + self.process

    @property
    def total(self) -> int:
        """The most bytes that it needs at any moment."""
        return max(self.serving, self.weights + self.loading)

    def __add__(self, other: Footprint) -> Footprint:
        """Add what the same process loads afterwards."""
        imported_bytes = IMPORTED_BYTES if self.process else 0
        loading = max(self.loading - other.weights, other.loading + imported_bytes if other.loading else 0)
        return Footprint(
            self.weights + other.weights,
            self.kv + other.kv,
            self.tier + other.tier,
            max(self.process, other.process),
            max(loading, 0),
            max(self.ahead, other.ahead),
            self.shared + other.shared,
            self.part,
            self.model,
        )

    @property
    def words(self) -> str:
        tier = f"{gibibytes(self.tier)} of --kv-tier"
        if not self.weights:
            return tier
        once = " that all of the host share" if self.shared else ""
        parts = [f"{gibibytes(self.weights)} of weights{once}"]
        parts += [f"{gibibytes(self.kv)} of KV cache"] if self.kv else []
        parts += [f"{gibibytes(self.process)} of the process"] if self.process else []
        parts += [tier] if self.tier else []
        words = " and ".join(filter(None, (", ".join(parts[:-1]), parts[-1])))
        return words if self.total == self.serving else f"{words} ({gibibytes(self.total)} while it loads)"


Others = Mapping[str, Sequence[Footprint]]
NO_OTHERS: Others = MappingProxyType({})
"""The footprints of other workers of a launch on each device."""


def check_memory(path: Path, demand: MemoryDemand, draft: Path | None = None, others: Others = NO_OTHERS) -> list[str]:
    """Return in words what devices are to hold. Raises ModelError when the model cannot be divided as it is planned,
    or when what all ranks on a device need at once, as they start together with others, does not fit its free memory;
    with the draft model where there is one."""
    return check_all_memory([(path, demand, draft)], others)


def check_all_memory(wanted: Sequence[tuple[Path, MemoryDemand, Path | None]], others: Others = NO_OTHERS) -> list[str]:
    """Do so for several models, each with its demand and its draft model, whose workers start together."""
    parts = [*(footprints(*one) for one in wanted), others]
    held = {
        device: [rank for part in parts for rank in part.get(device, ())]
        for device in dict.fromkeys(device for part in parts for device in part)
    }
    demands = [demand for _, demand, _ in wanted]
    ranks = [len(worker) for demand in demands for worker in demand.workers]
    return check_room(held, demands[0].gpu_memory if demands else {}, max(ranks, default=1))


def check_each_memory(
    wanted: Sequence[tuple[Path, MemoryDemand, Path | None]], others: Others, memory: int
) -> list[str]:
    """Do so for models of which not all are in memory at once, but as many as fit so many bytes."""
    lines = list[str]()
    for path, demand, draft in wanted:
        size, _ = awake_bytes(path, demand, draft)
        if size > memory:
            raise ModelError(
                f"the model {path.name} takes {gibibytes(size)} or more, and --model-memory is {gibibytes(memory)} for "
                "all: give more, or choose a smaller model or --quantization"
            )
        lines += check_all_memory([(path, demand, draft)], others)
    return lines


def awake_bytes(path: Path, demand: MemoryDemand, draft: Path | None) -> tuple[int, int]:
    """Return the least bytes of the host that the workers of a model take once they serve, and how many of these are
    weights that they share."""
    ranks = footprints(path, demand, draft).get(CPU, [])
    shared = sum({rank.part: rank.shared for rank in ranks}.values())
    return shared + sum(rank.serving - rank.shared for rank in ranks), shared


def check_room(held: Others, gpu_memory: Mapping[str, int], ranks: int = 1) -> list[str]:
    """Return in words what each device is to hold. Raises ModelError where that does not fit its free memory. Workers
    have up to so many ranks."""
    lines = list[str]()
    for device, device_footprints in held.items():
        room = host_room() if device == CPU else FreeMemory(gpu_memory.get(device, NO_LIMIT))
        needed = together(device_footprints)
        if needed > room.bytes:
            raise ModelError(refusal(device, device_footprints, ranks, room))
        kinds = "; ".join(dict.fromkeys(rank.words for rank in device_footprints))
        left = "" if room.bytes == NO_LIMIT else f", {gibibytes(room.bytes)} are left"
        count = len(device_footprints)
        lines.append(f"{device}: {gibibytes(needed)} or more for {count} at once{left}; each {kinds}")
    return lines


def together(held: Sequence[Footprint]) -> int:
    """Return the most bytes at any moment of processes that start at once. Of those that share weights one packs them,
    before any other loads more than its own code."""
    needed_bytes = sum(rank.total for rank in held if not rank.shared)
    for model, part in dict.fromkeys((rank.model, rank.part) for rank in held if rank.shared):
        sharing = [rank for rank in held if rank.shared and (rank.model, rank.part) == (model, part)]
        group = sorted(sharing, key=lambda rank: -rank.total)
        first, mappings = group[0], [rank.mapping for rank in group[1:]]
        packing = first.weights + first.loading + sum(rank.weights + rank.loading for rank in mappings)
        needed_bytes += max(packing, first.serving + sum(rank.serving for rank in mappings))
    return needed_bytes


def footprints(path: Path, demand: MemoryDemand, draft: Path | None = None) -> dict[str, list[Footprint]]:
    """Return the footprints on each device. Raises ModelError for a model that cannot be divided so."""
    if not demand.workers:
        return {}
    config = read_config(path)
    layouts = demand.layouts
    for layout in dict.fromkeys(layouts):
        layout.check(config)
    placed = list(zip(layouts, demand.workers, strict=True))
    kinds = dict.fromkeys((layout, device == CPU) for layout, worker in placed for device in worker)
    parts = {(layout, on_host): footprint(path, config, demand, layout, on_host) for layout, on_host in kinds}
    extra = {at: draft_footprint(path, draft, demand, at) for _, at in kinds} if draft is not None else {}
    tier = Footprint(0, 0, demand.kv_tier_memory, model=path.name)
    on_host = [CPU] if demand.kv_tier_memory else []
    ranks: dict[str, list[Footprint]] = {}
    for device in dict.fromkeys([*(device for worker in demand.workers for device in worker), *on_host]):
        ranks[device] = [
            replace(parts[layout, device == CPU], part=(layout, number))
            + (extra[device == CPU] if guesses and extra else Footprint(0, 0))
            for (layout, worker), guesses in zip(placed, drafting(path, demand, draft), strict=True)
            for number, rank in enumerate(worker)
            if rank == device
        ]
        if on_host and device == CPU:
            ranks[CPU] = [part + tier for part in ranks[CPU]] + [tier for worker in demand.workers if CPU not in worker]
    return ranks


def drafting(path: Path, demand: MemoryDemand, draft: Path | None) -> list[bool]:
    """Return for each worker whether it has what guesses: a draft layer is also where prompts are computed."""
    if draft is not None and find_draft_layer(path, draft) is not None:
        return [len(worker) == 1 for worker in demand.workers]
    return list(demand.drafting) or [False] * len(demand.workers)


def memory_lines(path: Path, demand: MemoryDemand, others: Others = NO_OTHERS) -> list[str]:
    """Return in words the memory of one rank of each size of a worker, and of all that start at once on the host.
    Raises ModelError as `check_memory` does."""
    check_memory(path, demand, None, others)
    config = read_config(path)
    kinds = sorted(zip(demand.layouts, demand.workers, strict=True), key=lambda kind: kind[0].size)
    layouts, lines = dict(kinds), list[str]()
    for layout, devices in layouts.items():
        rank = footprint(path, config, demand, layout, CPU in devices)
        ahead = f"; up to {gibibytes(rank.ahead)} of KV cache while there is plenty" if rank.ahead > rank.kv else ""
        lines.append(f"{one_of(layout, len(layouts))}: {rank.words}, or more{ahead}")
    host_ranks = [*footprints(path, demand).get(CPU, []), *others.get(CPU, ())]
    if len(host_ranks) > 1:
        room = host_room()
        lines.append(
            f"all {len(host_ranks)} at once: {gibibytes(together(host_ranks))} of the {gibibytes(room.bytes)} that "
            f"{room.where} has left"
        )
    return lines


def one_of(layout: RankLayout, kinds: int) -> str:
    if layout.size > 1:
        return f"each of {layout.size} ranks" + (" that share experts" if layout.data_parallel else "")
    return "each worker" if kinds == 1 else "a worker of one rank"


def draft_footprint(target: Path, path: Path, demand: MemoryDemand, on_host: bool = True) -> Footprint:
    """Return what a draft model, or a draft layer, takes of a worker, whose process is that of the target. A given size
    of the KV cache includes it."""
    layer = find_draft_layer(target, path)
    if layer is not None:
        draft = layer_footprint(target, layer, demand, on_host)
    else:
        config = read_config(path)
        if demand.quantization == "gguf" and not may_have_levels(path, config, not on_host):
            demand = replace(demand, quantization="none")
        draft = footprint(path, config, demand, on_host=on_host)
        draft = replace(draft, process=0, loading=max(0, draft.loading - IMPORTED_BYTES), ahead=0)
    return draft if demand.kv_cache_memory is None else replace(draft, kv=0)


def layer_footprint(target: Path, layer: DraftLayerSource, demand: MemoryDemand, on_host: bool) -> Footprint:
    """Return what a draft layer takes, in its target's type, and quantized where its files and its target are."""
    dtype, has_kernels = dtype_of(read_config(target), demand), on_host and demand.has_kernels
    has_levels = bool(layer.level_formats(not on_host))
    asked = "none" if demand.quantization == "gguf" and not has_levels else demand.quantization
    quantization = choose_quantization(asked, has_levels, dtype, has_kernels, not on_host)
    size = layer_memory(layer, quantization, DTYPE_BYTES[dtype], has_kernels, not on_host)
    is_shared = demand.shares_weights and are_shared(layer.path, has_kernels)
    kv = kv_bytes(layer.config, demand, dtype)
    return Footprint(size, kv, shared=size if is_shared else 0, model=target.name)


def refusal(device: str, held: Sequence[Footprint], ranks: int, room: FreeMemory) -> str:
    """Return the sentence that refuses what the processes of workers of up to so many ranks would need on a device: it
    advises only what would help."""
    most = max(held, key=lambda rank: rank.total)
    # A model beside the one that answers is neither divided nor quantized.
    beside = isinstance(most.part, str)
    unit = "worker" if ranks == 1 else "rank"
    suffix = "each" if len({replace(rank, part=most.part) for rank in held}) == 1 else "or less each"
    need_phrase = (
        f"{len(held)} {unit}s with {most.words} {suffix} need" if len(held) > 1 else f"a {unit} with {most.words} needs"
    )
    left_phrase = f"{room.where if device == CPU else device} has {gibibytes(room.bytes)} left"
    mixed = "" if beside else " (--role mixed is one that does both)"
    fewer = f"start fewer workers{mixed}, " if most.total <= room.bytes else ""
    split_advice = "" if device == CPU or beside else "divide it over more GPUs with +, "
    lower = f", or lower {'--kv-tier, ' if most.tier else ''}--kv-cache-memory or --max-model-len" if most.kv else ""
    smaller = "choose a smaller model" + ("" if beside else " or --quantization")
    return (
        f"the model {most.model} is too large: {need_phrase} {gibibytes(together(held))}, and {left_phrase}: {fewer}"
        f"{split_advice}{smaller}{lower if most.total == most.serving else ''}"
    )


def footprint(
    path: Path, config: ModelConfig, demand: MemoryDemand, ranks: RankLayout = ONE_RANK, on_host: bool = True
) -> Footprint:
    """Return the footprint of one of a worker's ranks. Raise ModelError for types or a block size that are not
    possible."""
    dtype, divided = dtype_of(config, demand), Ranks(ranks.size, demand.row_parallel, ranks.data_parallel)
    kv = kv_bytes(config, demand, dtype, divided.divisions)
    has_kernels = on_host and demand.has_kernels
    has_levels = may_have_levels(path, config, not on_host)
    quantization = choose_quantization(demand.quantization, has_levels, dtype, has_kernels, not on_host)
    weights = weight_memory(path, config, quantization, DTYPE_BYTES[dtype], divided, on_host, has_kernels)
    if not on_host:
        return Footprint(weights.held, kv, model=path.name)
    ahead = min(demand.kv_cache_ahead_memory, demand.kv_cache_memory or demand.kv_cache_ahead_memory)
    is_shared = demand.shares_weights and are_shared(path, has_kernels)
    return Footprint(
        weights.held,
        kv,
        0,
        IMPORTED_BYTES + max(SERVING_BYTES, weights.freed),
        IMPORTED_BYTES + weights.packing,
        ahead,
        weights.held if is_shared else 0,
        model=path.name,
    )


def dtype_of(config: ModelConfig, demand: MemoryDemand) -> str:
    """Return the type of a model's numbers. Raises ModelError for one that is not possible."""
    dtype = config.dtype if demand.dtype == "auto" else demand.dtype
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"--dtype {dtype} is not possible: choose one of {', '.join(DTYPE_BYTES)}")
    return dtype


def kv_bytes(config: ModelConfig, demand: MemoryDemand, dtype: str, divisions: int = 1) -> int:
    """Return the bytes of a KV cache of a rank, of so many that divide the heads."""
    cells = choose_kv_dtype(demand.kv_cache_dtype, dtype)
    layout = layout_for(config, demand.block_size, cells, ranks=divisions)
    # Without a requested length a sequence is as long as fits, so one block is enough. Block 0 is padding.
    blocks = layout.blocks_for(demand.max_model_len or 1) + 1
    return demand.kv_cache_memory or blocks * layout.block_bytes
