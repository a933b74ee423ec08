# SPDX-License-Identifier: Apache-2.0
"""The options and the frozen configuration of a worker. The launcher builds it once, before the first fork."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pontil.runtime.config.declaration import ENGINE, MODEL, PROCESSES, SUPERVISION, frozen, option
from pontil.runtime.config.readers import choice, choices, number, size, size_or_none, some_seconds, switch, text, whole
from pontil.runtime.config.shared_options import SharedDeadlines, SharedOptions
from pontil.runtime.foundation import connectors
from pontil.runtime.foundation.loopback import LOOPBACK

WorkerRole = Literal["prefill", "decode", "mixed", "embed", "rerank", "node"]
DTYPES = ("auto", "float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "int8", "fp8")
KERNELS = ("auto", "torch", "amx", "avx512bf16", "avx512", "avx2", "generic")
ATTENTION_BACKENDS = ("auto", "triton", "flash-attn", "flashinfer")
# Parts of steps on GPUs, each with the kernels that may compute it in the place of Triton's.
KERNEL_BACKENDS = ("draws=flashinfer", "experts=torch", "products=torch")
QUANTIZATIONS = ("auto", "none", "int8", "gguf")
POOLINGS = ("auto", "mean", "last", "cls")
# The ways in which the ranks of a worker share out sums.
EXACT, FAST = "exact", "fast"
# The most guesses of a draft model, unless --speculative-tokens says otherwise.
DRAFT_TOKENS = 8
KV_REACHES = ", else ".join(connectors.CONNECTORS[name].reach for name in connectors.usable(on_gpu=True, rdma=True))


@dataclass(frozen=True, kw_only=True)
class Deadlines(SharedDeadlines):
    """Time limits of a handoff on a worker, in seconds. The first worker of a request to hear of it waits
    `first_byte_timeout` for the other one, as long as the proxy waits for the first token. A transfer has
    `kv_transfer_timeout`, counted anew from its reservation and from each block that was computed for it; a pull
    without a byte for `kv_stall_timeout` has failed. Blocks that are handed over are kept for `kv_lease`, which the
    decode worker renews. A prefill worker answers a decode worker within `kv_handshake_timeout`. A connection over a
    network on which nothing comes for `link_timeout` is taken for cut. Ranks on several hosts meet within
    `rendezvous_timeout`."""

    kv_handshake_timeout: float = option(
        ENGINE, 5.0, "Longest wait for a prefill worker to answer a decode worker.", some_seconds, "SECONDS"
    )
    kv_lease: float = option(
        ENGINE, 30.0, "How long handed-over KV blocks are kept without a renewal.", some_seconds, "SECONDS"
    )
    kv_stall_timeout: float = option(
        ENGINE, 5.0, "Silence of a peer after which a transfer of KV blocks has failed.", some_seconds, "SECONDS"
    )
    kv_transfer_timeout: float = option(
        ENGINE, 120.0, "Longest time from the reservation for a prompt to its last KV block.", some_seconds, "SECONDS"
    )
    rendezvous_timeout: float = option(
        SUPERVISION, 300.0, "Longest wait of ranks for those on other hosts (--nnodes).", some_seconds, "SECONDS"
    )

    @property
    def renew_every(self) -> float:
        """Seconds between two renewals of a lease: two of them may be lost before it runs out."""
        return self.kv_lease / 3


DEADLINES = Deadlines()


@dataclass(frozen=True, slots=True)
class StepSize:
    """The sequences that a worker runs at once, and the tokens that it computes in a step."""

    seats: int
    tokens: int


CPU_STEP, GPU_STEP = StepSize(64, 256), StepSize(256, 8192)


@dataclass(frozen=True, kw_only=True)
class WorkerOptions(SharedOptions):
    """The options of every worker; one that has no use for an option ignores it."""

    dtype: str = option(MODEL, "auto", "Type of weights and activations.", choice(*DTYPES), "|".join(DTYPES))
    max_model_len: int | None = option(MODEL, None, "Longest prompt plus answer, in tokens.", whole(1), "TOKENS")
    quantization: str = option(
        MODEL,
        "auto",
        "Weights below 16 bits on a CPU: int8, or gguf: as the files have them (auto: if they do).",
        choice(*QUANTIZATIONS),
        "|".join(QUANTIZATIONS),
    )
    adapter_memory: int | None = option(
        MODEL,
        None,
        "Most memory of a worker's adapters; those used longest ago leave it, and are read again (default: any).",
        size,
        "SIZE",
    )
    pooling: str = option(
        MODEL,
        "auto",
        "How a vector is made of a text's tokens; auto: as the model's files say.",
        choice(*POOLINGS),
        "|".join(POOLINGS),
    )
    revision: str | None = option(
        PROCESSES,
        None,
        "A name for what these workers serve, other than that of workers that they replace.",
        text,
        "NAME",
    )
    max_num_seqs: int | None = option(
        ENGINE,
        None,
        f"Sequences a worker runs at once (default: {CPU_STEP.seats}, on a GPU {GPU_STEP.seats}).",
        whole(1, 65536),
        "COUNT",
    )
    max_num_batched_tokens: int | None = option(
        ENGINE,
        None,
        f"Tokens a worker computes in one step (default: {CPU_STEP.tokens}, on a GPU {GPU_STEP.tokens}).",
        whole(1),
        "TOKENS",
    )
    max_interleaved_tokens: int | None = option(
        ENGINE,
        None,
        "Prompt tokens computed in a step in which others decode (default: 64 on a CPU).",
        whole(1),
        "TOKENS",
    )
    block_size: int = option(ENGINE, 16, "Tokens in one block of KV cache.", whole(1, 1024), "TOKENS")
    prefix_caching: bool = option(
        ENGINE, True, "Keep computed prompts, so that those that begin alike are not computed again.", switch
    )
    keep_kv: bool = option(
        ENGINE,
        True,
        "Keep the KV of a worker on a CPU over its death, so that the next process finds it cached.",
        switch,
    )
    lease_share: float = option(
        ENGINE,
        0.5,
        "Share of each worker's KV cache, and of its tiers, that leases on prefixes may hold; 0: there are none.",
        number(0.0, 0.9),
        "SHARE",
    )
    speculative_tokens: int = option(
        ENGINE,
        0,
        "Most tokens guessed at a time; changes no answer, only its speed. With a draft model 0 stands for "
        f"{DRAFT_TOKENS}.",
        whole(0, 16),
        "COUNT",
    )
    speculative_model: str | None = option(
        ENGINE,
        None,
        "What guesses: a smaller model with the same tokenizer, an EAGLE head, or mtp, a layer of "
        "the model's own; else guesses are what stood before.",
        text,
        "NAME|PATH|mtp",
    )
    kv_cache_memory: int | None = option(ENGINE, None, "KV cache of each worker, like 2GiB or 512MB.", size, "SIZE")
    kv_cache_idle_memory: int = option(
        ENGINE,
        256 << 20,
        "KV cache that a worker on a CPU keeps after a time without work; the machine gets the rest back.",
        size,
        "SIZE",
    )
    kv_cache_idle_timeout: float = option(
        ENGINE, 300.0, "How long a worker on a CPU is without work before that.", some_seconds, "SECONDS"
    )
    kv_cache_ahead_memory: int = option(
        ENGINE,
        128 << 20,
        "KV cache that an idle worker maps before it is needed, at most; never more than was used so far.",
        size_or_none,
        "SIZE",
    )
    gpu_memory_share: float = option(
        ENGINE,
        0.9,
        "Share of a GPU's memory that may be used, by KV cache whatever weights and steps leave of it.",
        number(0.05, 1.0),
        "SHARE",
    )
    kv_cache_dtype: str = option(
        ENGINE,
        "auto",
        "Type of the KV cache; auto: as --dtype. int8, fp8: half of 16 bits.",
        choice(*KV_DTYPES),
        "|".join(KV_DTYPES),
    )
    kv_connector: str = option(
        ENGINE,
        connectors.AUTO,
        f"What carries KV blocks; auto: {KV_REACHES}.",
        choice(*connectors.NAMES),
        "|".join(connectors.NAMES),
    )
    stream_memory: int = option(
        ENGINE,
        256 << 20,
        "Memory of each worker for what it streams to the next stage of a model of several.",
        size,
        "SIZE",
    )
    kernels: str = option(
        ENGINE,
        "auto",
        "What computes on a CPU: our kernels for an instruction set, or torch.",
        choice(*KERNELS),
        "auto|torch|SET",
    )
    attention_backend: str = option(
        ENGINE,
        "auto",
        "What computes attention on GPUs; auto: Triton's kernels, until others were proved on that kind of GPU.",
        choice(*ATTENTION_BACKENDS),
        "|".join(ATTENTION_BACKENDS),
    )
    kernel_backend: tuple[str, ...] = option(
        ENGINE,
        (),
        "What computes other parts of steps on GPUs, in the place of Triton; several with commas between them.",
        choices(*KERNEL_BACKENDS),
        "|".join(KERNEL_BACKENDS),
    )
    tensor_parallel_arithmetic: str = option(
        ENGINE,
        EXACT,
        "Sums of a worker of several devices: exact: in the order of one device; fast: each device adds its part, and "
        "bits depend on their number.",
        choice(EXACT, FAST),
        f"{EXACT}|{FAST}",
    )
    expert_parallel: bool = option(
        ENGINE,
        False,
        "Rows travel to the devices of a worker that hold their experts, and results back; same bits.",
        switch,
    )
    deterministic: bool = option(
        ENGINE, False, "Compute products on GPUs so that a row's bits know no batch, as on CPUs; slower.", switch
    )


@dataclass(frozen=True)
class WorkerConfig(WorkerOptions):
    """The configuration of one worker process. Memory is in bytes, endpoints are zmq addresses. `transfer_host` is the
    address of this machine under which peers reach its KV blocks over TCP. `cache_dir` keeps data that is slow to
    derive; None keeps nothing. A worker of several processes has `ranks` of them; this one is `rank`, and rank 0 serves
    the others at `rank_endpoint`. They are on `nnodes` hosts, as many on each (docs/decisions/099). Instead it may be
    `data_parallel_rank` of `data_parallel_size` workers that meet there, of which each has a share of the experts
    (docs/decisions/094). `lent_cores` is the file through which the
    workers of a launch lend each other cores, if they do. `speculative_model` guesses tokens for `model`. `keys` is the
    system's secret (runtime/wire/links/keys.py), where it has one. `more_controls` are the endpoints of further
    proxies. `pooling` is for a worker that embeds. `deterministic` chooses products on a GPU whose rows' bits do not
    depend on the batch, `tensor_parallel_arithmetic` how ranks share out sums (docs/decisions/092), and with
    `expert_parallel` rows travel to their experts (docs/decisions/094). In a model of several stages, `graph` is its
    name in runtime/stages/graph/catalog.py and `node` the stage that this worker computes; items of its streams take at
    most `stream_memory`.
    `further_model` is the name of a model that is served beside the first of a launch. Prefixes that the KV cache
    evicts are kept in `kv_tier_memory` bytes, and in
    `kv_tier_disk_size` bytes in a folder of this worker's under `kv_tier_disk`. `revision` is the operator's name of
    what the worker serves during an upgrade, `version` that of pontil. `kept_memory` are the descriptors of two files
    that outlive this process, of KV blocks and of their records (runtime/cache/kept_pool.py), if the launcher holds
    such; with `keep_kv` it does for a worker on a CPU. `weights_memory` are those of a file for the packed weights of
    its model, and of one for what guesses for it, and of the parts beside a stage's, in which all workers of a launch
    have them once where the cache cannot (launcher/child/kept_memory.py). With `allow_chaos` the supervisor may cut the
    link over which KV blocks come, and stall all others."""

    name: str
    role: WorkerRole
    device: str
    cores: tuple[int, ...]
    model: str
    served_model_name: str
    control: str
    peer_endpoint: str
    kv_tier_memory: int = 0
    kv_tier_disk: str | None = None
    kv_tier_disk_size: int = 0
    transfer_host: str = LOOPBACK
    cache_dir: str | None = None
    lent_cores: str | None = None
    rank: int = 0
    ranks: int = 1
    rank_endpoint: str | None = None
    nnodes: int = 1
    data_parallel_rank: int = 0
    data_parallel_size: int = 1
    deadlines: Deadlines = DEADLINES
    keys: str | None = field(default=None, repr=False)
    graph: str | None = None
    node: str | None = None
    further_model: str | None = None
    version: str | None = None
    kept_memory: tuple[int, int] | None = None
    more_controls: tuple[str, ...] = ()
    weights_memory: tuple[int, ...] = ()

    @property
    def step_size(self) -> StepSize:
        """The sizes of the options, else those that suit the device: weights are read once a step, and a GPU has time
        for more rows of them."""
        usual = CPU_STEP if self.device == "cpu" else GPU_STEP
        return StepSize(self.max_num_seqs or usual.seats, self.max_num_batched_tokens or usual.tokens)

    @property
    def controls(self) -> tuple[str, ...]:
        """The endpoints of all proxies."""
        return (self.control, *self.more_controls)

    @property
    def row_parallel(self) -> bool:
        """Return whether the ranks of this worker add parts of sums."""
        return self.ranks > 1 and self.tensor_parallel_arithmetic == FAST

    @property
    def spans_hosts(self) -> bool:
        """Return whether ranks of this worker are on other hosts."""
        return self.nnodes > 1

    @property
    def shares_experts(self) -> bool:
        """Return whether the experts of the model are on several workers."""
        return self.data_parallel_size > 1

    @property
    def model_path(self) -> Path:
        return Path(self.model)

    @property
    def drafts(self) -> bool:
        """Return whether a draft model or a draft layer may guess here: not in a worker of several processes, nor in a
        group that shares experts."""
        alone = self.ranks == 1 and not self.shares_experts
        return self.speculative_model is not None and self.speculative_tokens > 0 and alone

    @property
    def draft_model_path(self) -> Path | None:
        """The model that guesses for this worker's, if it may decode."""
        return Path(str(self.speculative_model)) if self.drafts and self.role in ("decode", "mixed") else None

    @property
    def cache_path(self) -> Path | None:
        return None if self.cache_dir is None else Path(self.cache_dir)


def worker_config(values: dict[str, Any]) -> WorkerConfig:
    """Return the configuration from its JSON form. An unknown or missing key raises TypeError: only the launcher writes
    it."""
    deadlines = Deadlines(**values.get("deadlines", {}))
    return WorkerConfig(**{name: frozen(value) for name, value in values.items()} | {"deadlines": deadlines})
