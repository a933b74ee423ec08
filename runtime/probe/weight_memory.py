# SPDX-License-Identifier: Apache-2.0
"""The memory that the weights of a process take, and how much more they take while they are loaded, from their types
and shapes. No data is read.

The weights are counted product by product, in the order in which runtime/models takes them and gpu_ops/kernels packs
them: each is read whole, and packed some outputs at a time.
"""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from pontil.gpu_ops.kernels.weights.shared_scales import shared_inputs
from pontil.runtime.loaders.draft_layers import DraftLayerSource
from pontil.runtime.loaders.facts.layout import ROPE_FACTORS, tensor_shapes
from pontil.runtime.loaders.facts.weight_forms import EMBEDDING, HEAD, Shape
from pontil.runtime.loaders.gguf.block_sizes import stored_embedding
from pontil.runtime.loaders.gguf.packed_formats import ROUTER, NumberFormat, stacked
from pontil.runtime.loaders.level_formats import device_formats, directory_forms, kept_formats, level_formats
from pontil.runtime.models.config import ModelConfig

# Parts of the names of tensors that every rank of a worker holds whole, and of those with a row for each KV head.
WHOLE = ("embed_tokens", "norm", ROUTER, "q_a_proj", "kv_a_proj", ROPE_FACTORS)
KV_HEADS = ("k_proj", "v_proj")
# Those of products that join what ranks made, of which experts are whole.
JOINING, EXPERTS = (".o_proj", ".down_proj"), ".experts."
# A product of several weights has the name of the first.
JOINED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
# Outputs that are packed at once, and the bytes of temporaries for each number of these.
PIECE, UNPACKED_BYTES = 64, 24
# Levels of one number besides its scale and offset, both float32.
LEVEL_BYTES, LEVEL_SCALES = 1, 8
# Of a number of a quantized weight in a directory, besides what becomes of it: its place in the file's words, or the
# whole number or float of 8 bits that becomes a float.
READING_BYTES = 1
# Most of packing's freed temporaries that the C library keeps: larger ones are returned to the system at once.
MOST_FREED_BYTES = 576 << 20


@dataclass(frozen=True, slots=True)
class WeightMemory:
    """Bytes: `held` for good; `packing` more at the worst moment of loading; `freed` of these stay with the process. A
    step of one row reads `read` bytes of those that are held."""

    held: int
    packing: int = 0
    freed: int = 0
    read: int = 0


@dataclass(frozen=True, slots=True)
class Ranks:
    """So many ranks of a worker. Where they are `row_parallel`, a product that joins what they made is cut by its
    inputs. Where they are `data_parallel`, only experts are divided."""

    size: int = 1
    row_parallel: bool = False
    data_parallel: bool = False

    @property
    def divisions(self) -> int:
        """The number of parts of what is divided but for experts."""
        return 1 if self.data_parallel else self.size

    def divisor(self, name: str, config: ModelConfig) -> int:
        """Return the number of parts of a tensor of which a rank holds one."""
        return self.size if EXPERTS in name else divisor(name, config, self.divisions)

    def parts(self, name: str) -> int:
        """Return the number of parts of a weight's inputs of which a rank has one."""
        joins = any(part in name for part in JOINING) and EXPERTS not in name
        return self.size if self.row_parallel and joins else 1


ONE = Ranks()


@dataclass(frozen=True, slots=True)
class LoadedProduct:
    """Weights that are packed together: bytes of the result, and of the temporaries; and the share of such weights that
    a step of one row reads."""

    held: int
    packing: int
    used: float = 1.0


@dataclass(frozen=True, slots=True)
class WeightFormats:
    """The formats of a model's weights in memory: rounded to bytes if they are `int8`, as they are `stored` in their
    file if they are kept so, else `plain` numbers. An `embedding` that stays as it is in its file has so many bytes.
    Those that are `unpacked` when they are read have parts in their directory that they do not keep. Where nothing is
    `packed`, groups are those of the file."""

    plain: NumberFormat
    stored: Mapping[str, NumberFormat]
    int8: bool
    embedding: int | None
    unpacked: Container[str] = ()
    packed: bool = True

    def of(self, name: str, shape: Shape, parts: int = 1) -> NumberFormat:
        """Return the format of a tensor in a product, or of one of so many `parts` of its inputs, with groups as
        packing divides them."""
        if len(shape) == 1 or ROUTER in name:
            return self.plain
        form = NumberFormat(8, shape[1]) if self.int8 else self.stored.get(name, self.plain)
        if form.group is None:
            return form
        # Inputs in orders of their own are neither divided nor put together with those of other experts.
        if form.own_order and (parts > 1 or EXPERTS in name):
            return self.plain
        inputs = shape[1] // parts
        own = form if parts == 1 else form.columns(inputs)
        return replace(own, group=shared_inputs(inputs, own.group or inputs)) if self.packed else own

    def reading(self, weights: Mapping[str, Shape]) -> int:
        """Return the bytes that reading takes besides its result, for one of these weights after another. What becomes
        bytes is read as plain numbers."""
        sizes = (math.prod(shape) for name, shape in weights.items() if name in self.unpacked)
        numbers = (math.prod(shape) for shape in weights.values() if self.int8 and len(shape) > 1)
        return READING_BYTES * max(sizes, default=0) + self.plain.size(max(numbers, default=0))


def formats_of(
    path: Path,
    config: ModelConfig,
    quantization: str,
    number_bytes: int,
    has_kernels: bool = True,
    on_device: bool = False,
) -> WeightFormats:
    levels, embedding = {}, None
    if quantization == "gguf":
        levels = device_formats(path, config) if on_device else level_formats(path, config)
        embedding = stored_embedding(path) if path.is_file() and not on_device else None
    forms = directory_forms(path, config) if path.is_dir() else {}
    kept = {} if has_kernels else kept_formats(forms)
    stored, unpacked = levels | kept, forms.keys() - kept
    plain = NumberFormat(8 * number_bytes)
    return WeightFormats(plain, stored, quantization == "int8", embedding, unpacked, has_kernels)


def weight_memory(
    path: Path,
    config: ModelConfig,
    quantization: str,
    number_bytes: int,
    ranks: Ranks = ONE,
    on_host: bool = True,
    has_kernels: bool = True,
) -> WeightMemory:
    """Return the memory of one rank's part of the weights, as `quantization` makes them; numbers that it leaves are of
    the model's type, with so many bytes. A device's weights are not packed. Raises ModelError."""
    formats = formats_of(path, config, quantization, number_bytes, on_host and has_kernels, not on_host)
    products = list(loaded_products(config, formats, ranks, on_host))
    held_bytes = sum(product.held for product in products)
    read_bytes = int(sum(product.held * product.used for product in products))
    if not on_host:
        return WeightMemory(held_bytes, read=read_bytes)
    so_far = peak = 0
    for product in products:
        peak = max(peak, so_far + product.packing)
        so_far += product.held
    # Behind the head, which is last, nothing keeps the heap from shrinking.
    freed_bytes = min(MOST_FREED_BYTES, max(product.packing for product in products[:-1]))
    return WeightMemory(held_bytes, max(0, peak + freed_bytes - held_bytes), freed_bytes, read_bytes)


def layer_memory(
    layer: DraftLayerSource, quantization: str, number_bytes: int, has_kernels: bool = True, on_device: bool = False
) -> int:
    """Return the bytes of a draft layer's weights. Raises ModelError."""
    stored = layer.level_formats(on_device) if quantization == "gguf" else {}
    kept = {} if has_kernels else kept_formats(layer.forms())
    plain = NumberFormat(8 * number_bytes)
    formats = WeightFormats(plain, stored | kept, quantization == "int8", None, packed=has_kernels)
    return sum(formats.of(name, shape).size(math.prod(shape)) for name, shape in layer.shapes.items())


def loaded_products(
    config: ModelConfig, formats: WeightFormats, ranks: Ranks, on_host: bool
) -> Iterator[LoadedProduct]:
    """Yield the embedding, then what the layers take, then the head. A head that is tied to the embedding is a weight
    of its own on a CPU, where it is packed, and a part of it on a device with several ranks."""
    shapes = tensor_shapes(config)
    embedding = math.prod(shapes[EMBEDDING])
    table = formats.plain if on_host else formats.of(EMBEDDING, shapes[EMBEDDING])
    # One row of it is looked up, unless it is the head itself.
    is_head = config.tie_word_embeddings and not on_host and (ranks.divisions == 1 or table.group is not None)
    yield LoadedProduct(formats.embedding or table.size(embedding), formats.embedding or 0, float(is_head))
    groups: dict[str, list[str]] = {}
    for name in shapes:
        if name not in (EMBEDDING, HEAD):
            groups.setdefault(product_of(name), []).append(name)
    for product, names in groups.items():
        whole = sum(math.prod(shapes[name]) for name in names)
        share = sum(math.prod(shapes[name]) // ranks.divisor(name, config) for name in names)
        form = stacked([formats.of(name, shapes[name], ranks.parts(name)) for name in names])
        # Gates and ups are joined, and then put in turn.
        inputs = max(shapes[name][-1] for name in names)
        extra = packing(form, whole, share, inputs, 1 + ("gate_proj" in product))
        reading = formats.reading({name: shapes[name] for name in names})
        yield LoadedProduct(form.size(share), extra + reading, used_share(product, config))
    if not config.tie_word_embeddings:
        form = formats.of(HEAD, shapes[EMBEDDING])
        own = embedding // ranks.divisions
        extra = packing(form, embedding, own, config.hidden_size, 0)
        yield LoadedProduct(form.size(own), extra + formats.reading({HEAD: shapes[EMBEDDING]}))
    elif on_host:
        yield tied_head(shapes[EMBEDDING], formats, ranks.divisions)
    elif ranks.divisions > 1 and table.group is None:
        # Numbers are copied, so that they lie as a product has them; stored weights are not.
        yield LoadedProduct(table.size(embedding // ranks.divisions), 0)


def tied_head(shape: Shape, formats: WeightFormats, ranks: int) -> LoadedProduct:
    """Return what packing takes of a head that is tied to the embedding. Nothing is read for it but levels: numbers are
    packed from the embedding itself, or where there are several ranks from a copy of this one's."""
    form, whole = formats.of(EMBEDDING, shape), math.prod(shape)
    own = whole // ranks
    if form.group is not None and not formats.int8:
        return LoadedProduct(form.size(own), packing(form, whole, own, shape[-1], 0))
    copied = formats.plain.size(own) if ranks > 1 else 0
    packed = packing(form, own, own, shape[-1], 0) if copied or formats.int8 else 0
    return LoadedProduct(form.size(own), packed + copied)


def used_share(name: str, config: ModelConfig) -> float:
    """Return the share of such weights that a row goes through: of experts some."""
    return config.experts.per_token / config.experts.count if config.experts and EXPERTS in name else 1.0


def product_of(name: str) -> str:
    for part, first in JOINED.items():
        name = name.replace(part, first)
    return name


def packing(form: NumberFormat, whole: int, own: int, inputs: int, joins: int) -> int:
    """Return the most bytes of temporaries while a product of `own` numbers, of `whole` that are read, with so many
    inputs, is packed, with the result. Its parts are joined or put in order so many times; of two copies of whole
    numbers the first is gone by then."""
    if form.group is None:
        return form.size(whole) + joins * form.size(own)
    levels = LEVEL_BYTES * whole + LEVEL_SCALES * whole // form.group
    return max(1, joins) * levels + form.size(own) + UNPACKED_BYTES * PIECE * inputs


def divisor(name: str, config: ModelConfig, ranks: int) -> int:
    """Return the number of parts of a tensor of which a rank holds one."""
    if any(part in name for part in WHOLE):
        return 1
    return min(ranks, config.num_kv_heads) if any(part in name for part in KV_HEADS) else ranks
