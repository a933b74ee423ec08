# SPDX-License-Identifier: Apache-2.0
"""Loading of a process's part of the model onto its device: the same for a worker of one process and for each rank."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Protocol

import torch

from pontil.gpu_ops.attention_backends.choice import OWN
from pontil.gpu_ops.collectives.communicator import Communicator, SingleRank
from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.kernels.kernel_set import AUTO, TORCH, open_kernels
from pontil.gpu_ops.kernels.lent_cores import LentCores
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.weights.file_memory import MappedFile
from pontil.gpu_ops.kernels.weights.shelf import Shelf
from pontil.runtime.cache.kept_pool import KeptPool
from pontil.runtime.cache.layout import DTYPE_BYTES, KVLayout, choose_kv_dtype, layout_for
from pontil.runtime.cache.storage import TORCH_DTYPES, KVStorage
from pontil.runtime.config.worker_config import QUANTIZATIONS, WorkerConfig
from pontil.runtime.engine.runner.memory_errors import is_out_of_memory
from pontil.runtime.engine.sequences.known_adapters import KnownAdapters
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.checkpoint import Checkpoint
from pontil.runtime.loaders.gguf.file import GgufCheckpoint
from pontil.runtime.loaders.gguf.packed_formats import NO_GGUF, choose_quantization
from pontil.runtime.loaders.hf.directory import HfCheckpoint
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.models.families.registry import build_model
from pontil.runtime.models.layers.fused_block import kernels_fit
from pontil.runtime.models.model import Model
from pontil.runtime.models.partition import Arithmetic, check_dispatch, check_division, check_shares, check_states
from pontil.runtime.models.weights import Packing, Weights
from pontil.runtime.probe.host_memory import host_room
from pontil.runtime.reporting import Reporter
from pontil.runtime.wire.compatibility import DETERMINISTIC, ON_GPU, ROW_PARALLEL
from pontil.runtime.worker.adapters.adapter_reader import put_adapters
from pontil.runtime.worker.start.bits_identity import bits_identity
from pontil.runtime.worker.start.gpu_room import TorchMeter, measure_room, room_of_adapters
from pontil.runtime.worker.start.package_check import check_attention, check_limits, check_results
from pontil.runtime.worker.start.packed_weights import PackedModel, shelf_for, state_of
from pontil.runtime.worker.start.stage_model import PartOnDisk, stage_checkpoint
from pontil.runtime.worker.start.weights_progress import told

logger = logging.getLogger("pontil.worker")

MOST_CPU_KV_BYTES = 4 << 30
CPU_KV_SHARE = 0.2

# Makes the communicator of this process, which exchanges parts of this model with the other ranks.
Join = Callable[[ModelConfig, KernelLibrary | None, torch.device], Communicator]


@dataclass(frozen=True, slots=True)
class ModelPart:
    """A process's part of a model. `config` is the whole model's. `layout` is that of its own KV heads, and
    `num_blocks` the blocks that it has room for. `dtype` is the model's, `kernels` names what computes it. `kept` is
    the pool that outlives this process, if one does, and `mapped` the file that has the weights. The model has these
    `adapters`."""

    config: ModelConfig
    fingerprint: str
    model: Model
    layout: KVLayout
    num_blocks: int
    dtype: str
    kernels: str
    lent_cores: LentCores | None
    kept: KeptPool | None = None
    mapped: MappedFile | None = None
    adapters: KnownAdapters = field(default_factory=KnownAdapters)

    def open_storage(self, num_blocks: int, first_epoch: int) -> KVStorage:
        """Open the pool. Epochs begin with `first_epoch`, which is later than any that a kept one may have."""
        if self.kept is None:
            return KVStorage(self.layout, num_blocks, self.model.device, first_epoch=first_epoch)
        return self.kept.open(self.layout, num_blocks, self.model.device, first_epoch)


def load(config: WorkerConfig, report: Reporter, join: Join) -> ModelPart:
    """Load this process's part of the model. Raises ModelError."""
    device, lent_cores = open_device(config), open_lent_cores(config)
    checkpoint = for_its_device(config, stage_checkpoint(config))
    if isinstance(checkpoint, HfCheckpoint) and checkpoint.left_out:
        parts = ", ".join(f"{name}* ({count} tensors)" for name, count in checkpoint.left_out.items())
        logger.info("tensors of other parts are no part of this model: %s", parts)
    model_config = shorten(checkpoint.config, config.max_model_len)
    check_division(model_config, config.ranks)
    guesses = config.speculative_tokens > 0 or config.speculative_model is not None
    check_states(model_config, config.device, guesses)
    if config.expert_parallel and config.ranks > 1:
        check_dispatch(model_config)
    if config.shares_experts:
        check_shares(model_config, config.data_parallel_size)
    dtype = choose_dtype(config.dtype, checkpoint)
    cells = choose_kv_dtype(config.kv_cache_dtype, dtype)
    fits = kernels_fit(model_config, TORCH_DTYPES[dtype], config.ranks)
    kernels = find_kernels(config, fits or config.kernels != AUTO, report)
    if kernels is not None and lent_cores is not None:
        kernels.borrow(lent_cores)
    config = replace(config, quantization=quantization_of(config, checkpoint, dtype, kernels))
    others = check_limits(config, TORCH_DTYPES[dtype], device)
    communicator = join(model_config, kernels, device)
    weights = read_weights(config, checkpoint, device, dtype, kernels, report, communicator)
    model = build_model(model_config, weights)
    check_results(others, weights.by_torch, model_config.vocab_size, device)
    layout = layout_for(model_config, config.block_size, cells, kernels is not None, config.rank, config.ranks)
    check_attention(config, model_config, layout, device)
    named = name_of_kernels(device, kernels, config.deterministic, (config.attention_backend, *others))
    if config.quantization != "none":
        named = f"{named} {config.quantization}"
    if config.row_parallel:
        named = f"{named}{ROW_PARALLEL}{config.ranks}"
    kept = open_kept(config, model_config, checkpoint.fingerprint, layout, dtype, named)
    # Those that share experts have all of an adapter, each.
    adapters = put_adapters(model.adapters, config, SingleRank() if config.shares_experts else communicator)
    num_blocks = None if kept is None else kept.num_blocks
    if num_blocks is None:
        num_blocks = count_blocks(config, model, layout, weights.shelf.reclaimable, room_of_adapters(config, adapters))
    return ModelPart(
        model_config, checkpoint.fingerprint, model, layout, num_blocks, dtype, named, lent_cores, kept,
        weights.shelf.mapped, adapters,
    )  # fmt: skip


def open_kept(
    config: WorkerConfig, model: ModelConfig, fingerprint: str, layout: KVLayout, dtype: str, kernels: str
) -> KeptPool | None:
    """Open the files that the launcher holds for this process, if it does. A GPU's memory ends with its process.
    Only then is the identity needed, for which all files of code are looked at."""
    if config.kept_memory is None or config.device != "cpu":
        return None
    return KeptPool(*config.kept_memory, bits_identity(config, model, fingerprint, layout, dtype, kernels))


@contextmanager
def memory_errors(device: str) -> Iterator[None]:
    """Raise ModelError where memory ran out."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        raise ModelError(
            f"the model does not fit the memory of {device}: choose a smaller one or --quantization, or lower "
            "--kv-cache-memory, or start fewer workers"
        ) from error


def name_of_kernels(
    device: torch.device, kernels: KernelLibrary | None, deterministic: bool = False, others: Sequence[str] = ()
) -> str:
    """Return the name of the kernels. Workers with equal names round alike: torch's operations are assumed to, on all
    CPUs, and on GPUs of one kind that are `deterministic` or not alike and have the same `others` in Triton's place."""
    if device.type == "cuda":
        named = "".join(f" {name}" for name in others if name not in OWN)
        return f"{ON_GPU}{torch.cuda.get_device_name(device)}{DETERMINISTIC if deterministic else ''}{named}"
    return kernels.name if kernels else TORCH


def for_its_device(config: WorkerConfig, checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint with the levels that are multiplied where this worker computes."""
    return checkpoint if config.device == "cpu" else checkpoint.for_device()


def quantization_of(config: WorkerConfig, checkpoint: Checkpoint, dtype: str, kernels: KernelLibrary | None) -> str:
    """Return the quantization that a configuration asks for, or that suits this checkpoint."""
    on_device = config.device != "cpu"
    return choose_quantization(config.quantization, checkpoint.has_levels, dtype, kernels is not None, on_device)


def read_weights(
    config: WorkerConfig,
    checkpoint: Checkpoint,
    device: torch.device,
    dtype: str,
    kernels: KernelLibrary | None,
    report: Reporter,
    communicator: Communicator | None = None,
) -> Weights:
    """Read the weights, quantized if so configured. Raises ModelError for a quantization that is not possible here."""
    wanted, torch_dtype = config.quantization, TORCH_DTYPES[dtype]
    if wanted not in QUANTIZATIONS:
        raise ModelError(f"--quantization {wanted} is not known: choose one of {', '.join(QUANTIZATIONS)}")
    possible = (kernels is not None and dtype == "bfloat16") or (wanted == "gguf" and config.device != "cpu")
    if wanted != "none" and not possible:
        raise ModelError(f"--quantization {wanted} needs a CPU's kernels and bfloat16: leave out --kernels and --dtype")
    tensors = checkpoint.tensors
    if wanted == "gguf":
        if not checkpoint.has_levels and not isinstance(checkpoint, GgufCheckpoint):
            raise ModelError(NO_GGUF)
        tensors = partial(checkpoint.levels, stored_rows=kernels is not None)
    if checkpoint.unpacked_types and (wanted == "gguf" or not checkpoint.has_levels):
        types = " and ".join(checkpoint.unpacked_types)
        logger.info("weights of %s become %s: the kernels do not have these types", types, dtype)
    read = unchanged(tensors(torch_dtype), checkpoint.files)
    telling = told(read, total=len(checkpoint.places), tell=report.progress)
    packing = None if kernels is None else open_packing(config, checkpoint, dtype, kernels, report)
    ways = (config.row_parallel, config.expert_parallel, config.shares_experts)
    by_torch = () if device.type == "cpu" else config.kernel_backend
    arithmetic = Arithmetic(config.deterministic, *ways, by_torch, bool(config.adapter or config.adapter_directory))
    return Weights(telling, device, torch_dtype, packing, communicator, checkpoint.config.weight_block, arithmetic)


def unchanged(tensors: Iterator[tuple[str, torch.Tensor]], files: Sequence[Path]) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the same tensors. Raises ModelError behind the last one if a file was written to or replaced since now:
    they may be of two models, and nothing may be packed of them under the name of one."""
    before = [state_of(path) for path in files]

    def reading() -> Iterator[tuple[str, torch.Tensor]]:
        yield from tensors
        for path, state in zip(files, before, strict=True):
            if state_of(path) != state:
                raise ModelError(f"{path} was changed while it was read: start again, with files that stay as they are")

    return reading()


class OnDisk(Protocol):
    """The weights of a model, or of a part of one, in files."""

    @property
    def fingerprint(self) -> str: ...

    @property
    def files(self) -> Sequence[Path]: ...


def open_packing(
    config: WorkerConfig, checkpoint: OnDisk, dtype: str, kernels: KernelLibrary, report: Reporter, part: str = ""
) -> Packing:
    """Find what other processes of this host have packed of the same weights for the same kernels."""
    rank = (config.rank, config.ranks, config.row_parallel)
    facts = (checkpoint.fingerprint, checkpoint.files, kernels.name, dtype, config.quantization)
    if config.shares_experts:
        part = f"{part} experts {config.data_parallel_rank} of {config.data_parallel_size}".strip()
    model = PackedModel(*facts, *rank, part)
    shelf = shelf_for(config.cache_path, model, report.progress, next(iter(config.weights_memory), None))
    stored = None
    if isinstance(checkpoint, GgufCheckpoint) and config.quantization == "gguf":
        stored = checkpoint.embedding_type
    return Packing(kernels, config.quantization == "int8", shelf, stored)


class PartWeights:
    """Reads parts of a model that one process computes beside each other, onto one device, in one type and for the same
    kernels. Where no file can be written, the launcher has `memory` for each of them, in order."""

    def __init__(
        self,
        config: WorkerConfig,
        device: torch.device,
        dtype: torch.dtype,
        kernels: KernelLibrary | None,
        report: Reporter,
        memory: Sequence[int] = (),
    ) -> None:
        # The quantization is for the model that generates.
        self.config, self.memory = replace(config, quantization="none"), iter(memory)
        self.device, self.dtype, self.kernels, self.report = device, dtype, kernels, report
        self.shelves: list[Shelf] = []

    def read(self, checkpoint: PartOnDisk, part: str) -> Weights:
        packing = None
        if self.kernels is not None:
            dtype = str(self.dtype).removeprefix("torch.")
            config = replace(self.config, weights_memory=tuple(islice(self.memory, 1)))
            packing = open_packing(config, checkpoint, dtype, self.kernels, self.report, part)
            self.shelves.append(packing.shelf)
        tensors = unchanged(iter(checkpoint.tensors()), checkpoint.files)
        arithmetic = Arithmetic(self.config.deterministic)
        return Weights(tensors, self.device, self.dtype, packing, arithmetic=arithmetic)

    @property
    def mapped(self) -> list[MappedFile]:
        """The files that have the weights, once these were taken."""
        return [shelf.mapped for shelf in self.shelves if shelf.mapped is not None]


def find_kernels(config: WorkerConfig, fits: bool, report: Reporter) -> KernelLibrary | None:
    """Return the kernels on this worker's cores for a model that they fit, or None for torch's operations. With kernels
    of our own, torch gets one thread: two thread pools that wait by spinning must not share cores."""
    # With kernels, ranks meet in the memory of one host.
    if config.device != "cpu" or not fits or config.spans_hosts:
        return None
    try:
        kernels = open_kernels(config.kernels, max(1, len(config.cores)), config.cache_path, report.progress)
    except KernelError as error:
        raise ModelError(f"--kernels {config.kernels} is not possible: {error}") from error
    if kernels is not None:
        torch.set_num_threads(1)
    return kernels


def open_lent_cores(config: WorkerConfig) -> LentCores | None:
    """Open the file through which workers lend and borrow idle cores. If that fails, the worker computes on its own
    cores only."""
    if config.lent_cores is None or config.device != "cpu":
        return None
    try:
        return LentCores(Path(config.lent_cores), config.cores)
    except (OSError, ValueError) as error:
        logger.warning("no cores are lent or borrowed: %s", error)
        return None


def open_device(config: WorkerConfig) -> torch.device:
    device = torch.device(config.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"{config.device} was asked for, but torch finds no GPU here: use cpu, or check the driver")
    if device.type != "cpu":
        # Triton starts kernels on the thread's current device, whatever their tensors' is; so are graphs recorded.
        torch.cuda.set_device(device)
    torch.set_num_threads(max(1, len(config.cores)))
    return device


def choose_dtype(asked: str, checkpoint: Checkpoint) -> str:
    dtype = checkpoint.config.dtype if asked == "auto" else asked
    if dtype not in DTYPE_BYTES:
        raise ModelError(f"--dtype {dtype} is not possible: choose one of {', '.join(DTYPE_BYTES)}")
    return dtype


def shorten(model: ModelConfig, asked: int | None) -> ModelConfig:
    """Return the configuration with the requested context length."""
    if asked is None:
        return model
    if asked > model.max_model_len:
        raise ModelError(f"--max-model-len {asked} is more than the {model.max_model_len} this model was made for")
    return replace(model, max_model_len=asked)


def count_blocks(config: WorkerConfig, model: Model, layout: KVLayout, mapped: int = 0, adapters: int = 0) -> int:
    """Return the number of blocks in the KV memory: the configured size, else what weights and steps leave of a GPU's,
    or a share of the free memory of the host, but not more than all seats at the longest context can use. Weights that
    are `mapped` from a file have so many bytes of that memory: they are read in each step."""
    if config.kv_cache_memory is not None:
        return config.kv_cache_memory // layout.block_bytes
    if model.device.type == "cuda":
        return measure_room(config, model, layout, TorchMeter(model.device), adapters).kv // layout.block_bytes
    # Block 0 is padding.
    usable = config.step_size.seats * layout.blocks_for(model.config.max_model_len) + 1
    size = min(MOST_CPU_KV_BYTES, int(max(0, host_room().bytes - mapped) * CPU_KV_SHARE))
    return min(usable, size // layout.block_bytes)


def fit(model: ModelConfig, config: WorkerConfig, layout: KVLayout, num_blocks: int, block_bytes: int) -> ModelConfig:
    """Return the configuration with a context length that fits the pool. Block 0 is reserved as padding. `block_bytes`
    are those of a block of each model that has a share of the memory."""
    tokens = (num_blocks - 1) * layout.block_size
    needed = (layout.blocks_for(model.max_model_len) + 1) * block_bytes
    if tokens < layout.block_size or (config.max_model_len and tokens < config.max_model_len):
        raise ModelError(
            f"the KV memory holds {max(0, tokens)} tokens, too few for one sequence: "
            f"raise --kv-cache-memory to {-(-needed >> 20)} MiB or lower --max-model-len"
        )
    return replace(model, max_model_len=min(model.max_model_len, tokens))
