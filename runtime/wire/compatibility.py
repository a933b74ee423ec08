# SPDX-License-Identifier: Apache-2.0
"""The properties in which two processes must agree to serve one request, and the error message where they differ
(C8)."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from pontil.runtime.wire.messages import Greet, Hello

Introduction: TypeAlias = Hello | Greet


@dataclass(frozen=True, slots=True)
class CompatibilityTrait:
    """A field that must be equal where both have it, its name for people, and how a user makes it equal."""

    name: str
    label: str
    remedy: str
    show: Callable[[Any], str]


def plain(name: str) -> Callable[[Any], str]:
    return lambda introduction: str(getattr(introduction, name))


def model_of(one: Introduction) -> str:
    """Return the model's name with its fingerprint: two models may have one name."""
    return f"{one.model} ({one.model_fingerprint})" if isinstance(one, Hello) else one.model_fingerprint


TRAITS = (
    CompatibilityTrait("model_fingerprint", "model", "the same --model", model_of),
    CompatibilityTrait("dtype", "dtype", "--dtype {}", plain("dtype")),
    CompatibilityTrait("kv_cache_dtype", "KV cache dtype", "--kv-cache-dtype {}", plain("kv_cache_dtype")),
    CompatibilityTrait("block_size", "block size", "--block-size {}", plain("block_size")),
    CompatibilityTrait("grammars", "grammars by", "{} installed", plain("grammars")),
    CompatibilityTrait("kernels", "kernels", "the same --kernels and --quantization", plain("kernels")),
)
ADAPTERS = CompatibilityTrait("adapters", "adapters", "the same --adapter", lambda one: shown_adapters(one.adapters))
# Prefix of the name of kernels that run on a GPU: torch's operations and the kind of GPU. A CPU rounds differently, and
# so may another kind of GPU.
ON_GPU = "torch/cuda:"
# Behind the name of such kernels, where their products are those of one tile size.
DETERMINISTIC = " deterministic"
SAME_DEVICE = (
    "a device of the same kind (--prefill and --decode choose it; --kernels does not help), and --deterministic, "
    "--attention-backend and --kernel-backend as there"
)
# Behind the name of kernels, where the ranks of a worker add parts of sums, before the number of ranks.
ROW_PARALLEL = " row-parallel/"
SAME_SUMS = "--tensor-parallel-arithmetic as there, and if it is fast, as many devices for a worker"
# The KV layout follows from the other traits, so it is named only where none of them explains the difference. Blocks
# that end with states have pages of --block-size, and are those of one number of ranks.
SAME_LAYOUT = "the same version of pontil, and for a hybrid model the same --block-size and as many devices"
LAYOUT = CompatibilityTrait("kv_fingerprint", "KV layout", SAME_LAYOUT, plain("kv_fingerprint"))


def promises_bits(kernels: str | None) -> bool:
    """Return whether a row computed by these kernels has the same bits whatever is computed beside it (C16)."""
    return kernels is not None and (not kernels.startswith(ON_GPU) or f"{DETERMINISTIC} " in f"{kernels} ")


def objection(theirs: Introduction, ours: Introduction) -> str | None:
    """Return why these two cannot work together and how to mend it; None when they can."""
    traits = (*TRAITS, ADAPTERS) if isinstance(theirs, Hello) else TRAITS
    different = [trait for trait in traits if differs(trait, theirs, ours)]
    if not different and differs(LAYOUT, theirs, ours):
        different = [LAYOUT]
    if not different:
        return None
    their_traits = listed([f"{trait.label} {trait.show(theirs)}" for trait in different])
    our_traits = listed([trait.show(ours) for trait in different])
    remedy = listed([remedy_of(trait, theirs, ours) for trait in different])
    return f"{theirs.name} has {their_traits} but {ours.name} has {our_traits}: start it with {remedy}"


def shown_adapters(adapters: Mapping[str, str]) -> str:
    return ", ".join(f"{name} ({digest[:12]})" for name, digest in sorted(adapters.items())) or "none"


def remedy_of(trait: CompatibilityTrait, theirs: Introduction, ours: Introduction) -> str:
    names = [trait.show(introduction) for introduction in (theirs, ours)]
    if trait.name == "kernels" and len({name.partition(ROW_PARALLEL)[0] for name in names}) == 1:
        return SAME_SUMS
    if trait.name == "kernels" and any(name.startswith(ON_GPU) for name in names):
        return SAME_DEVICE
    return trait.remedy.format(trait.show(ours))


def differs(trait: CompatibilityTrait, theirs: Introduction, ours: Introduction) -> bool:
    """Return whether the two differ in this trait. A value that is None on one side (an older sender) is no
    difference."""
    values = getattr(theirs, trait.name, None), getattr(ours, trait.name, None)
    return None not in values and values[0] != values[1]


def foreign(theirs: Introduction, us: str, schema: int) -> str | None:
    """Return the objection to another protocol version, or None. Of another version no other field can be trusted."""
    if theirs.schema == schema:
        return None
    name = theirs.name or "a process"
    return (
        f"{name} speaks version {theirs.schema} of the protocol and {us} version {schema}: "
        "install the same version of pontil for both"
    )


def listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)} and {last}" if most else last
