# SPDX-License-Identifier: Apache-2.0
"""The trial of kernels that were asked for in the place of Triton's, before a worker takes memory for its pool."""

import logging
from collections.abc import Callable

import torch

from pontil.gpu_ops.attention_backends.backend import AttentionBackend
from pontil.gpu_ops.attention_backends.choice import MODULES, OWN, SOURCES, limit_of, open_backend
from pontil.gpu_ops.attention_backends.self_check import AttentionShape, SelfCheck, objection
from pontil.gpu_ops.draws.filtered_draws import COMPARED, DRAWS, NEARLY_TIES, FilteredDraws
from pontil.gpu_ops.products.torch_products import EXPERTS, PRODUCTS, TorchProducts
from pontil.runtime.cache.layout import KVLayout
from pontil.runtime.cache.storage import CELL_DTYPES
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig

logger = logging.getLogger("pontil.worker")

FLASHINFER = "flashinfer"
TORCH = "torch"
SOURCE_OF = {DRAWS: SOURCES[FLASHINFER], EXPERTS: TORCH, PRODUCTS: TORCH}
# The least capability of a GPU that computes in floats of 8 bits, and the generations for which torch has a kernel of
# grouped products: on others it reads the sizes of groups on the host.
LEAST_FLOAT8, GROUPED_GENERATIONS = (8, 9), (9, 10)
# Results, and what is between two products, are rounded to bfloat16.
TOLERANCE = 2e-2
NONE_MADE = {
    PRODUCTS: "no weight of this model is floats of 8 bits with one scale for each output",
    EXPERTS: "this model has no experts whose weights are bfloat16, without biases, or adapters may come",
}
BATCH = "with --deterministic a row's bits must not depend on the batch, which only Triton's kernels keep"


def check_attention(
    config: WorkerConfig,
    model: ModelConfig,
    layout: KVLayout,
    device: torch.device,
    reference: AttentionBackend | None = None,
) -> None:
    """Compare the backend that a configuration asks for with Triton's kernels, in layers as this worker's. Raises
    ModelError if it cannot compute them, or does it otherwise. On a CPU the option changes nothing."""
    name = config.attention_backend
    if name in OWN or device.type == "cpu":
        return
    found = refusal(config, model, layout, device, AttentionBackend() if reference is None else reference)
    refuse(f"--attention-backend {name}", found)
    logger.info("attention is computed by %s, whose results on short texts are those of Triton's kernels", name)


def refuse(option: str, found: str | None) -> None:
    if found is not None:
        raise ModelError(f"{option} is not possible: {found}; leave it out, and Triton computes")


def refusal(
    config: WorkerConfig, model: ModelConfig, layout: KVLayout, device: torch.device, reference: AttentionBackend
) -> str | None:
    name = config.attention_backend
    if config.deterministic:
        return BATCH
    dtype = CELL_DTYPES[layout.dtype]
    limit = limit_of(name, layout.planes, layout.head_dim, dtype, model.sinks)
    if limit is not None:
        return limit
    heads, kv_heads = model.num_heads // config.ranks, len(layout.kv_heads)
    shape = AttentionShape(heads, kv_heads, layout.head_dim, dtype, layout.page_size, model.windows or (None,))
    return tried(name, shape, device, reference)


def tried(name: str, shape: AttentionShape, device: torch.device, reference: AttentionBackend) -> str | None:
    """Return why a backend's results are not to be had, or are others than the reference's."""
    check = SelfCheck(shape, device)
    rows, width = len(check.tables) + 1, check.tables.shape[1]

    def compare() -> str | None:
        return objection(open_backend(name, device, rows, width), reference, shape, device)

    return outcome(compare, MODULES[name], SOURCES[name])


def outcome(compare: Callable[[], str | None], module: str, source: str) -> str | None:
    """Return what a comparison with another package's kernels finds, or why it cannot be made."""
    try:
        return compare()
    except ModuleNotFoundError as error:
        return f"{error.name or module} is not installed: the backend is of {source}"
    # A package for another GPU, CUDA or torch fails as it is loaded, compiles or starts.
    except (ImportError, RuntimeError, OSError, ValueError, TypeError, AttributeError) as error:
        return f"its package fails here ({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''})"


def check_limits(config: WorkerConfig, dtype: torch.dtype, device: torch.device) -> tuple[str, ...]:
    """Return the parts of a step that a configuration has other kernels compute, none on a CPU. Raises ModelError for
    one that cannot be had here, before weights are read."""
    if device.type == "cpu":
        return ()
    for name in config.kernel_backend:
        refuse(f"--kernel-backend {name}", BATCH if config.deterministic else limit(name, dtype, device))
    return config.kernel_backend


def limit(name: str, dtype: torch.dtype, device: torch.device) -> str | None:
    if name == DRAWS:
        return None
    if dtype != torch.bfloat16:
        return "its results are bfloat16 (--dtype)"
    capability = (0, 0) if torch.version.hip is not None else torch.cuda.get_device_capability(device)
    if name == PRODUCTS and capability < LEAST_FLOAT8:
        return "it needs a GPU that computes in floats of 8 bits, as of NVIDIA's Ada and Hopper"
    if name == EXPERTS and capability[0] not in GROUPED_GENERATIONS:
        return "torch has grouped products for NVIDIA's Hopper and Blackwell only"
    return None


def check_results(names: tuple[str, ...], products: TorchProducts, vocabulary: int, device: torch.device) -> None:
    """Compare kernels with Triton's, products with the model's own weights. Raises ModelError where they differ, or
    where the model has nothing that they compute."""
    for name in names:
        refuse(f"--kernel-backend {name}", differing(name, products, vocabulary, device))
        logger.info("%s: the results are those of Triton's kernels", name)


def differing(name: str, products: TorchProducts, vocabulary: int, device: torch.device) -> str | None:
    def compare_draws() -> str | None:
        others = FilteredDraws.of_package().differing(vocabulary, device)
        few = others <= NEARLY_TIES
        return None if few else f"from {others} of {COMPARED} rows it draws other ids than Triton's kernels"

    def compare_products() -> str | None:
        worst = [one.difference() for one in products.made[name].values()]
        # A comparison with NaN is false.
        wrong = [one for one in worst if not one <= TOLERANCE]
        if not wrong:
            return None if worst else NONE_MADE[name]
        return (
            f"its results differ by {wrong[0]:.2g} of the largest from those of Triton's kernels, where "
            f"{TOLERANCE:g} may be rounding"
        )

    return outcome(compare_draws if name == DRAWS else compare_products, FLASHINFER, SOURCE_OF[name])
