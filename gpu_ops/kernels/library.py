# SPDX-License-Identifier: Apache-2.0
"""A loaded library of kernels, with the threads and the scratch memory of this process."""

import ctypes
from ctypes import byref

import torch
from torch import Tensor

from pontil.gpu_ops.kernels.compile.build import KernelError
from pontil.gpu_ops.kernels.lent_cores import LentCores
from pontil.gpu_ops.kernels.rank_group import SharedGroup
from pontil.gpu_ops.kernels.weights.matrix import GROUP, Matrix
from pontil.gpu_ops.kernels.weights.structures import (
    ABI,
    KINDS,
    NOT_JOINED,
    AttentionFields,
    DrawFields,
    ExpertFields,
    LatentFields,
    LayerFields,
    MlpFields,
    RecurrentFields,
    TileFields,
    signatures,
)
from pontil.gpu_ops.parameters.draws import RankedRows


class KernelLibrary:
    """`name` distinguishes kernels that may round differently. One call at a time; the caller keeps alive what it
    passes.

    A row's bits depend only on that row and its keys, for any number of rows and threads (rule C16).
    """

    def __init__(self, library: ctypes.CDLL, name: str, threads: int = 1) -> None:
        signatures(library)
        assert library.pontil_abi() == ABI
        self.library, self.name, self.threads = library, name, threads
        # Stays mapped as long as the threads live.
        self.lent_cores: LentCores | None = None
        self.group: SharedGroup | None = None
        self.context = library.pontil_open(threads)
        if self.context is None:
            raise KernelError("this system does not let this process use its instructions", is_about_one_set=True)

    def close(self) -> None:
        """End the threads. No method may be called after this."""
        self.library.pontil_close(self.context)

    def borrow(self, lent_cores: LentCores) -> None:
        """Compute, from now on, also on cores that others lend, at most as many as there are threads."""
        self.library.pontil_borrow(self.context, lent_cores.address, lent_cores.cores, lent_cores.mark)
        self.lent_cores = lent_cores

    def join(self, group: SharedGroup | None) -> None:
        """Exchange the parts of divided layers in this group from now on; None leaves it. The methods that compute
        layers then raise the group's error if a rank fails."""
        self.library.pontil_join(self.context, None if group is None else group.handle)
        self.group = group

    def check(self, status: int) -> None:
        assert status != NOT_JOINED, "the layers are those of a rank of another group"
        if status:
            assert self.group is not None
            self.group.check(status)

    def draw(self, fields: DrawFields) -> None:
        """Draw ids, with the calling thread alone."""
        self.library.pontil_draw(byref(fields))

    def top_logits(
        self, logits: Tensor, groups: Tensor | None, rows: "ctypes.Array[ctypes.c_int32]", pairs: Tensor
    ) -> None:
        """Find the highest logits of these rows, with the calling thread alone, as `draws.top_logits` does."""
        tops = None if groups is None else groups.data_ptr()
        self.library.pontil_top_logits(
            logits.data_ptr(), logits.stride(0), tops, rows, len(rows), logits.shape[1], pairs.shape[1],
            pairs.data_ptr(),
        )  # fmt: skip

    def multiply_adds(self, dtype: torch.dtype, rounds: int) -> int:
        """Do independent multiply-adds with all threads, `rounds` times some, as fast as the processor can; return how
        many were done. Products are compared with their rate."""
        count: int = self.library.pontil_multiply_adds(self.context, KINDS[dtype], rounds)
        return count

    def read(self, memory: Tensor) -> None:
        """Read a contiguous tensor once, with all threads."""
        self.library.pontil_read(self.context, memory.data_ptr(), memory.nbytes // 4)

    def attention_half(self, fields: AttentionFields, tile: TileFields, hidden: Tensor) -> None:
        """Add a layer's attention to hidden, float32 [rows, hidden_size], and write the rows' keys and values."""
        self.check(self.library.pontil_attention_half(self.context, byref(fields), byref(tile), hidden.data_ptr()))

    def latent_half(self, fields: LatentFields, tile: TileFields, hidden: Tensor) -> None:
        """Do what `attention_half` does, for latent attention."""
        self.check(self.library.pontil_latent_half(self.context, byref(fields), byref(tile), hidden.data_ptr()))

    def recurrent_half(self, fields: RecurrentFields, tile: TileFields, hidden: Tensor) -> None:
        """Add a recurrent layer to hidden, float32 [rows, hidden_size], and bring the sequences' states up to date."""
        self.check(self.library.pontil_recurrent_half(self.context, byref(fields), byref(tile), hidden.data_ptr()))

    def take_kept(self, fields: "ctypes.Array[LayerFields]", tile: TileFields) -> None:
        """Take kept rows of a tile into the states of the layers that have such."""
        self.library.pontil_take_kept(self.context, byref(fields), len(fields), byref(tile))

    def mlp_half(self, fields: MlpFields, x: Tensor, result: Tensor) -> None:
        """Add the MLP of x to the result, both float32 [rows, hidden_size]; they may be the same tensor."""
        self.check(
            self.library.pontil_mlp_half(self.context, byref(fields), x.shape[0], x.data_ptr(), result.data_ptr())
        )

    def expert_half(self, fields: ExpertFields, x: Tensor, result: Tensor) -> None:
        """Add the experts of x to the result, both float32 [rows, hidden_size]; they may be the same tensor."""
        self.check(
            self.library.pontil_expert_half(self.context, byref(fields), x.shape[0], x.data_ptr(), result.data_ptr())
        )

    def layers(self, fields: "ctypes.Array[LayerFields]", tile: TileFields, hidden: Tensor) -> None:
        """Run both halves of one layer after the other, in place in hidden, float32 [rows, hidden_size]."""
        self.check(self.library.pontil_layers(self.context, byref(fields), len(fields), byref(tile), hidden.data_ptr()))

    def linear(self, matrix: Matrix, x: Tensor) -> Tensor:
        """Multiply x float32 [rows, inputs], rounded to the weights' type first, to float32 [rows, outputs]."""
        return self.multiply(matrix, x, (None, 0.0), (None, None))

    def head(self, matrix: Matrix, x: Tensor, norm: Tensor | None, epsilon: float) -> tuple[Tensor, RankedRows]:
        """Norm the rows with weights float32 [inputs], if given, then multiply as `linear` does. Also return the
        highest outputs, of equal ones the first."""
        groups = torch.empty(x.shape[0], -(-matrix.outputs // GROUP))
        ranked = RankedRows(torch.empty(x.shape[0], dtype=torch.int64), groups)
        weights = None if norm is None else norm.data_ptr()
        found = ranked.highest.data_ptr(), groups.data_ptr()
        return self.multiply(matrix, x, (weights, epsilon), found), ranked

    def multiply(
        self, matrix: Matrix, x: Tensor, norm: tuple[int | None, float], found: tuple[int, int] | tuple[None, None]
    ) -> Tensor:
        x = x.contiguous()
        result = torch.empty(x.shape[0], matrix.outputs + -matrix.outputs % GROUP)
        self.library.pontil_linear(
            self.context, byref(matrix.fields), x.shape[0], x.data_ptr(), *norm, result.data_ptr(), *found
        )
        return result[:, : matrix.outputs]
