# SPDX-License-Identifier: Apache-2.0
"""The tensors of a checkpoint, handed out by name, each exactly once and in the shape the architecture expects."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from pontil.gpu_ops.collectives.communicator import Communicator, SingleRank
from pontil.gpu_ops.kernels.latent import HeadMatrices
from pontil.gpu_ops.kernels.library import KernelLibrary
from pontil.gpu_ops.kernels.linear import PackedLinear, Product
from pontil.gpu_ops.kernels.weights.matrix import alternate, alternate_numbers, stack
from pontil.gpu_ops.kernels.weights.quantized import QuantizedWeights, can_stack, per_channel
from pontil.gpu_ops.kernels.weights.shelf import Packable, PrivateShelf, Shelf
from pontil.gpu_ops.products.head_linear import HeadLinear
from pontil.gpu_ops.products.level_weights import on_device
from pontil.gpu_ops.products.linear import Linear, NumbersLinear
from pontil.gpu_ops.products.scaled_weights import (
    FP4_GROUP,
    Fp4Weights,
    JoinedLinear,
    PackedWeights,
    ScaledLinear,
    ScaledWeights,
    StoredHead,
    StoredWeights,
    stacked,
)
from pontil.gpu_ops.products.torch_products import TorchProducts
from pontil.runtime.errors import ModelError
from pontil.runtime.models.adapter_places import EXPERTS, AdapterPlaces
from pontil.runtime.models.adapters import AdaptedProduct, attach
from pontil.runtime.models.joining_product import JoiningProduct
from pontil.runtime.models.partition import USUAL, Arithmetic, Cut, Partition, Split, by_columns, joining, whole
from pontil.runtime.models.stored_rows import BlockType, DeviceRows, StoredRows, Table

Weight = Tensor | QuantizedWeights | PackedWeights
# The weights of one product, which are several where their inputs stand in different orders.
ProductWeight = Weight | list[QuantizedWeights]
HeadProduct = HeadLinear | HeadMatrices


@dataclass(frozen=True, slots=True)
class Packing:
    """The kernels for which weights of products are laid out. `int8` rounds them to signed bytes, and the `shelf` may
    have them from an earlier process. Rows of an embedding stay in blocks of the type `stored`, if there is one."""

    kernels: KernelLibrary
    int8: bool = False
    shelf: Shelf = field(default_factory=PrivateShelf)
    stored: BlockType | None = None

    @classmethod
    def of(cls, kernels: KernelLibrary | None, int8: bool = False) -> "Packing | None":
        """The packing for kernels that there may not be."""
        return None if kernels is None else cls(kernels, int8)


class Weights:
    """A model takes the tensors that it needs; `finish` then names those that are left. Tensors are moved to `device`
    and `dtype`.

    Tensors are read when they are taken. Those that come before the wanted one in the file wait in `left`: few, if they
    come in the order in which the model takes them, so that the model is never in memory twice.

    With `packing`, products are laid out for kernels, which the model must fit. A rank of `communicator` keeps its part
    of a product, which the product's `cut` says, or its `split`. Floats of 8 bits stay so if they have a scale for
    each `block` of outputs and inputs, and floats of 4 bits where there is no `packing`. Where there is a choice,
    products are computed by this `arithmetic`.
    """

    def __init__(
        self,
        tensors: Iterable[tuple[str, Tensor]],
        device: torch.device,
        dtype: torch.dtype,
        packing: Packing | None = None,
        communicator: Communicator | None = None,
        block: tuple[int, int] | None = None,
        arithmetic: Arithmetic = USUAL,
    ) -> None:
        self.source = iter(tensors)
        self.left: dict[str, Tensor] = {}
        self.device = device
        self.dtype = dtype
        self.kernels = None if packing is None else packing.kernels
        self.int8 = packing is not None and packing.int8
        self.shelf: Shelf = PrivateShelf() if packing is None else packing.shelf
        self.stored = None if packing is None else packing.stored
        self.block = block
        self.deterministic = arithmetic.deterministic
        self.by_torch = TorchProducts(arithmetic.by_torch)
        self.missing: list[str] = []
        # Data-parallel ranks divide experts, and nothing else.
        self.experts_communicator = communicator or SingleRank()
        self.experts_partition = partition_of(self.experts_communicator, arithmetic)
        alone = self.experts_partition.data_parallel
        self.communicator = SingleRank() if alone else self.experts_communicator
        self.partition = Partition() if alone else self.experts_partition
        self.places = AdapterPlaces(self.partition, device, dtype, self.kernels is not None, arithmetic.adapters)

    def take(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Take the tensor of that name."""
        return self.shelf.tensor(name, lambda: self.read(name, *shape, dtype=dtype))

    def table(self, name: str, rows: int, columns: int) -> Table:
        """Take a table whose rows are looked up."""
        kind = self.stored
        if kind is None:
            levels = None if self.device.type == "cpu" else self.levels(name, rows, columns)
            if levels is None:
                return self.take(name, rows, columns)
            return DeviceRows(on_device(levels, self.device), self.dtype)
        size, name = columns // kind.numbers * kind.size, f"{name}.blocks"
        blocks = self.shelf.tensor(name, lambda: self.read(name, rows, size, dtype=torch.uint8))
        return StoredRows(blocks, kind, self.dtype)

    def read(self, name: str, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Read a tensor of which something is made; one of whole numbers becomes floats. A missing one is noted and
        replaced by zeros, so that `finish` names them all."""
        levels = self.levels(name, *shape)
        tensor = self.left.pop(name, None) if levels is None else levels.dense()
        if tensor is None:
            self.missing.append(name)
            return torch.zeros(shape)
        if tensor.shape != shape:
            raise wrong_shape(name, tensor.shape, shape)
        if tensor.dtype == torch.float8_e4m3fn:
            raise ModelError(f"the tensor {name} has floats of 8 bits: this version reads them in products only")
        return tensor.to(device=self.device, dtype=dtype or self.dtype)

    def linear(self, inputs: int, *parts: tuple[str, int], bias: bool = False, cut: Cut = whole) -> Product:
        """One product for several weights with the same input, stacked in the given order of (name, outputs), each of
        them cut.

        A part's tensors are `name.weight` and, where there are biases, `name.bias`.
        """

        return self.split_linear(inputs, parts, bias, Split(cut))

    def joining(self, inputs: int, name: str, outputs: int, made: Cut, bias: bool = False) -> JoiningProduct:
        """One product of what the ranks have made by a cut, whose results all of them have."""
        split = joining(self.partition, made)
        product = self.split_linear(inputs, ((name, outputs),), bias, split)
        communicator = SingleRank() if made is whole else self.communicator
        return JoiningProduct(product, communicator, split.is_partial, self.deterministic)

    def ordered(self, inputs: int, parts: Sequence[tuple[str, int]], order: Sequence[int]) -> Product:
        """One product with these outputs of the stacked weights of (name, outputs), in this order: a rank's own."""

        def make() -> tuple[Weight, Tensor | None]:
            weights = [self.numbers(self.weight(f"{name}.weight", outputs, inputs, Split())) for name, outputs in parts]
            return self.rounded(self.chosen(torch.cat(weights), order)), None

        return self.product(parts[0][0], make, adapted=self.places.ordered(inputs, parts, order))

    def chosen(self, tensor: Tensor, rows: Sequence[int]) -> Tensor:
        """Some rows of a tensor, in this order."""
        return tensor.index_select(0, torch.tensor(rows, dtype=torch.int64).to(self.device))

    def split_linear(self, inputs: int, parts: Sequence[tuple[str, int]], bias: bool, split: Split) -> Product:
        def make() -> tuple[ProductWeight, Tensor | None]:
            weight = self.join([self.weight(f"{name}.weight", outputs, inputs, split) for name, outputs in parts])
            biases = [self.bias(name, outputs, split) for name, outputs in parts if bias]
            return weight, torch.cat(biases) if biases else None

        return self.product(parts[0][0], make, split.is_partial, self.places.of(inputs, parts, split))

    def bias(self, name: str, outputs: int, split: Split) -> Tensor:
        """This rank's part of a bias. Of sums rank 0 adds it, and the others zeros, so that all compute alike."""
        own = self.part(self.read(f"{name}.bias", outputs), split.outputs)
        return torch.zeros_like(own) if split.is_partial and self.partition.rank else own

    def gate_and_up(
        self, inputs: int, gate: str, up: str, outputs: int, cut: Cut = by_columns, bias: bool = False
    ) -> Product:
        """Gates and ups in one product: side by side, or in the kernels' layout."""
        if self.kernels is None:
            return self.linear(inputs, (gate, outputs), (up, outputs), bias=bias, cut=cut)

        def make() -> tuple[Weight, Tensor | None]:
            gates, ups = (self.weight(f"{name}.weight", outputs, inputs, Split(cut)) for name in (gate, up))
            assert not isinstance(gates, PackedWeights) and not isinstance(ups, PackedWeights)
            biases = [self.part(self.read(f"{name}.bias", outputs), cut) for name in (gate, up) if bias]
            return alternate(gates, ups), alternate_numbers(*biases) if biases else None

        place = self.places.of(inputs, ((gate, outputs), (up, outputs)), Split(cut), alternate=True)
        return self.product(gate, make, adapted=place)

    def join(self, parts: list[Weight]) -> ProductWeight:
        """One weight with the outputs of all parts, or on a device whole numbers that cannot be one."""
        scaled = [part for part in parts if isinstance(part, PackedWeights)]
        levels = [part for part in parts if isinstance(part, QuantizedWeights)]
        if len(levels) == len(parts) and can_stack(levels):
            return stack(*levels)
        if len(levels) == len(parts) and self.device.type != "cpu":
            return levels
        whole = stacked(scaled) if len(scaled) == len(parts) else None
        return torch.cat([self.numbers(part) for part in parts]) if whole is None else whole

    def dense(self, name: str, outputs: int, inputs: int, cut: Cut) -> Tensor:
        """This rank's outputs of a weight that is not used as one product, in the type of the weights."""
        return self.numbers(self.weight(f"{name}.weight", outputs, inputs, Split(cut)))

    def numbers(self, weight: Weight) -> Tensor:
        """A weight as numbers of the weights' type, where they are multiplied."""
        if isinstance(weight, Tensor):
            return weight
        made = weight.dense() if isinstance(weight, QuantizedWeights) else weight.dense(self.dtype)
        return made.to(device=self.device, dtype=self.dtype)

    def weight(self, name: str, outputs: int, inputs: int, split: Split) -> Weight:
        """This rank's part of a product's weight, quantized if the checkpoint holds it so or `int8` asks for it."""
        found = self.packed(name, outputs, inputs) or self.levels(name, outputs, inputs)
        if found is None:
            return self.across(self.rounded(self.part(self.read(name, outputs, inputs), split.outputs)), split)
        own: Weight = found.rows(split.outputs(self.partition, outputs))
        if isinstance(own, PackedWeights) and self.kernels is not None:
            # Kernels have floats of 8 or 4 bits as levels, or as numbers like any others.
            own = self.rounded(own.dense(self.dtype))
        return self.across(own, split)

    def across(self, weight: Weight, split: Split) -> Weight:
        """This rank's inputs of a weight [outputs, inputs]. Those of other ranks take no memory."""
        inputs = weight.shape[1]
        own = split.inputs(self.partition, inputs)
        if len(own) == inputs:
            return weight
        uneven = isinstance(weight, PackedWeights) and own.start % weight.group + own.stop % weight.group
        if uneven or (isinstance(weight, QuantizedWeights) and weight.order is not None):
            weight = self.numbers(weight)
        return weight[:, own.start : own.stop].clone() if isinstance(weight, Tensor) else weight.columns(own)

    def part(self, tensor: Tensor, cut: Cut) -> Tensor:
        """This rank's outputs of a weight or a bias [outputs, ...]. Those of other ranks take no memory."""
        own = cut(self.partition, len(tensor))
        return tensor if len(own) == len(tensor) else tensor[own.start : own.stop].clone()

    def two_of_heads(self, name: str, make: Callable[[], tuple[Tensor, Tensor]]) -> tuple[HeadProduct, HeadProduct]:
        """Two products with weights of their own for each head, [heads, inputs, outputs] both."""
        if self.kernels is None:
            first, second = make()
            return HeadLinear(first), HeadLinear(second)
        packed = self.shelf.matrices(name, lambda: [(head.T, None) for part in make() for head in part])
        heads = len(packed) // 2
        return HeadMatrices(packed[:heads]), HeadMatrices(packed[heads:])

    def skip(self, name: str, outputs: int, inputs: int, bias: bool = False) -> None:
        """Pass over a product's weight that other ranks have."""
        if not self.shelf.reads:
            return
        if bias:
            self.read(f"{name}.bias", outputs)
        name, shape = f"{name}.weight", (outputs, inputs)
        if self.packed(name, *shape) is None and self.levels(name, *shape) is None:
            self.read(name, *shape)

    def packed(self, name: str, outputs: int, inputs: int) -> PackedWeights | None:
        """Return the checkpoint's own floats of 8 or 4 bits with their scales."""
        fours = f"{name}_blocks"
        self.read_on(name, fours, f"{name}.offsets")
        if fours in self.left:
            groups = inputs // FP4_GROUP
            numbers = self.read(fours, outputs, groups, FP4_GROUP // 2, dtype=torch.uint8)
            return Fp4Weights(numbers, self.read(f"{name}_scales", outputs, groups, dtype=torch.uint8))
        if self.block is None or name not in self.left or self.left[name].dtype != torch.float8_e4m3fn:
            return None
        if self.left[name].shape != (outputs, inputs):
            raise wrong_shape(name, self.left[name].shape, (outputs, inputs))
        numbers = self.left.pop(name).to(self.device)
        blocks = (-(-outputs // self.block[0]), -(-inputs // self.block[1]))
        scales = self.read(f"{name}_scale_inv", *blocks, dtype=torch.float32)
        return ScaledWeights.of_blocks(numbers, scales, self.block)

    def levels(self, name: str, *shape: int) -> QuantizedWeights | None:
        """Return the checkpoint's own quantized numbers, with their scales and offsets."""
        parts = [f"{name}.{part}" for part in ("numbers", "scales", "offsets")]
        self.read_on(name, parts[-1])
        if parts[-1] not in self.left:
            return None
        numbers, scales, offsets = (self.left.pop(part) for part in parts)
        steps, table, order = (self.left.pop(f"{name}.{part}", None) for part in ("steps", "table", "order"))
        floats = numbers.dtype == torch.float8_e4m3fn
        found = QuantizedWeights(
            numbers.view(torch.uint8) if floats else numbers, scales, offsets, steps, table, floats=floats, order=order
        )
        if found.shape != shape:
            raise wrong_shape(name, found.shape, shape)
        return found

    def rounded(self, weight: Tensor) -> Tensor | QuantizedWeights:
        return per_channel(weight) if self.int8 else weight

    @property
    def keeps_head(self) -> bool:
        """Return whether rows float32 can be multiplied by weights of 16 bits, as those of the head are."""
        return self.kernels is None and self.device.type != "cpu" and self.dtype != torch.float32

    def product_of_numbers(self, weight: Tensor | QuantizedWeights | StoredWeights) -> Product:
        """The product of rows float32 with such a weight, or with a stored one."""
        if isinstance(weight, Tensor):
            return NumbersLinear(weight, deterministic=self.deterministic)
        stored = on_device(weight, self.device) if isinstance(weight, QuantizedWeights) else weight
        return StoredHead(stored, self.dtype, self.device, None, self.deterministic)

    def product(
        self,
        name: str,
        make: Callable[[], tuple[ProductWeight, Tensor | None]],
        is_partial: bool = False,
        adapted: AdaptedProduct | None = None,
    ) -> Product:
        """The product of a weight and a bias, which are made if no earlier process has kept it under this name."""
        if self.kernels is None:
            made: Product = self.plain(*make(), stays=EXPERTS not in name)
        else:
            (matrix,) = self.shelf.matrices(name, lambda: [packable(*make())])
            made = PackedLinear(self.kernels, replace(matrix, partial=True) if is_partial else matrix)
        if adapted is not None:
            attach(adapted.held, made)
        return made

    def plain(self, weight: ProductWeight, bias: Tensor | None = None, *, stays: bool = True) -> Linear:
        """A product by torch, or by a kernel of a GPU. One that does not stay is put together with others."""
        if isinstance(weight, list):
            biases = [None] * len(weight) if bias is None else bias.split([len(one.numbers) for one in weight])
            parts = zip(weight, biases, strict=True)
            return JoinedLinear([self.plain(one, own, stays=stays) for one, own in parts])
        if isinstance(weight, Tensor):
            return Linear(weight, bias, self.deterministic)
        stored = on_device(weight, self.device) if isinstance(weight, QuantizedWeights) else weight
        own = self.by_torch.linear(stored, self.dtype, self.device, bias) if stays else None
        return own or ScaledLinear(stored, self.dtype, self.device, bias, self.deterministic)

    def read_on(self, *names: str) -> None:
        """Read tensors until one of these is here, or to the end."""
        while not any(name in self.left for name in names) and (found := next(self.source, None)) is not None:
            self.left[found[0]] = found[1]

    def finish(self) -> None:
        """Raise ModelError if a tensor was missing or is left over."""
        if self.shelf.reads:
            self.read_on()
        if self.missing:
            missing = ", ".join(self.missing)
            raise ModelError(f"the checkpoint lacks {missing}: it is incomplete or of another architecture")
        if self.left:
            raise ModelError(f"the checkpoint has tensors this architecture does not know: {', '.join(self.left)}")
        self.shelf.finish()


def packable(weight: ProductWeight, bias: Tensor | None) -> Packable:
    assert not isinstance(weight, PackedWeights | list)
    return weight, bias


def wrong_shape(name: str, found: Sequence[int], wanted: Sequence[int]) -> ModelError:
    return ModelError(f"the tensor {name} has shape {list(found)}, the configuration asks for {list(wanted)}")


def partition_of(communicator: Communicator, arithmetic: Arithmetic) -> Partition:
    """Return what the arithmetic makes of ranks, where there are several."""
    if communicator.size == 1:
        return Partition()
    ways = (arithmetic.row_parallel, arithmetic.expert_parallel, arithmetic.data_parallel)
    return Partition(communicator.rank, communicator.size, *ways)
