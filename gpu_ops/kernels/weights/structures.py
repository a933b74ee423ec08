# SPDX-License-Identifier: Apache-2.0
"""The structures of csrc/kernels.h, field by field. Pointers are addresses; null is None."""

import ctypes

import torch

ABI = 22
FLOAT32, BFLOAT16, NIBBLES, BYTES, EIGHTS, FOURS, SIXES = range(7)
KINDS = {torch.float32: FLOAT32, torch.bfloat16: BFLOAT16}
CELLS = {torch.int8: 1, torch.float8_e4m3fn: 2}
"""Cells of a KV pool that are not of the weights' type."""
SILU, GELU_TANH, CLAMPED = range(3)
SOFTMAX, SIGMOID = range(2)
NOT_DISPATCHED, SHARES, OWN_TILES = range(3)
"""The rows that a rank sends to their experts."""

DONE, FAULTY, TOO_LARGE, NOT_JOINED = range(4)
ENDED, LATE, ELSEWHERE = 1, 2, 3

address, integer, size, number = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64, ctypes.c_float


class MatrixFields(ctypes.Structure):
    _fields_ = [
        *((name, address) for name in ("data", "scales", "units", "bias", "table", "adapters")),
        *((name, integer) for name in ("kind", "outputs", "inputs", "words", "scale_words", "partial")),
        *((name, integer) for name in ("first_panel", "odd")),
    ]


class AdapterFields(ctypes.Structure):
    _fields_ = [
        ("shrink", MatrixFields),
        ("expand", address),
        *((name, size) for name in ("shrink_apart", "expand_apart")),
        *((name, integer) for name in ("rank", "unused")),
    ]


class AdaptersFields(ctypes.Structure):
    _fields_ = [
        ("slots", ctypes.POINTER(AdapterFields)),
        ("parts", address),
        ("count", integer),
        ("unused", integer),
    ]


class SpanFields(ctypes.Structure):
    _fields_ = [
        ("blocks", address),
        *((name, integer) for name in ("row", "start", "count", "kept")),
        ("state_blocks", address),
    ]


class TileFields(ctypes.Structure):
    _fields_ = [
        ("pool", address),
        ("spans", ctypes.POINTER(SpanFields)),
        ("span_count", integer),
        ("rows", integer),
        ("kind", integer),
        *((name, integer) for name in ("layers", "planes", "kv_heads", "block_size", "head_dim", "cells", "unused")),
        ("cosines", address),
        ("sines", address),
        ("adapters", address),
        ("states", address),
        ("state_stride", size),
        ("state_tokens", integer),
        ("also_unused", integer),
        ("kept", address),
        ("kept_stride", size),
    ]


class RotationFields(ctypes.Structure):
    _fields_ = [("cosines", address), ("sines", address), ("dim", integer), ("interleaved", integer)]


class AttentionFields(ctypes.Structure):
    _fields_ = [
        ("qkv", MatrixFields),
        ("out", MatrixFields),
        *((name, address) for name in ("before", "after", "query_norm", "key_norm", "sinks")),
        ("rotation", RotationFields),
        ("epsilon", number),
        ("scale", number),
        *(
            (name, integer)
            for name in ("hidden", "heads", "kv_heads", "head_dim", "layer", "window", "gated", "unused")
        ),
    ]


class LatentFields(ctypes.Structure):
    _fields_ = [
        *((name, MatrixFields) for name in ("compress", "down", "query", "out")),
        *((name, ctypes.POINTER(MatrixFields)) for name in ("absorb", "expand")),
        *((name, address) for name in ("before", "after", "query_norm", "key_norm")),
        ("rotation", RotationFields),
        *((name, number) for name in ("epsilon", "latent_epsilon", "scale")),
        *((name, integer) for name in ("hidden", "heads", "rank", "key_dim", "value_dim", "layer", "window")),
    ]


class RecurrentFields(ctypes.Structure):
    _fields_ = [
        ("into", MatrixFields),
        ("out", MatrixFields),
        *((name, address) for name in ("before", "after", "norm", "channels")),
        *((name, address) for name in ("channel_bias", "bias", "rate", "direct")),
        *((name, number) for name in ("epsilon", "own_epsilon")),
        *((name, integer) for name in ("hidden", "key_heads", "value_heads", "key_dim", "value_dim", "width")),
        *((name, integer) for name in ("layer", "unused")),
    ]


class MlpFields(ctypes.Structure):
    _fields_ = [
        ("gate_up", MatrixFields),
        ("down", MatrixFields),
        ("before", address),
        ("after", address),
        *((name, number) for name in ("epsilon", "alpha", "limit")),
        *((name, integer) for name in ("hidden", "inner", "activation")),
    ]


class ExpertFields(ctypes.Structure):
    _fields_ = [
        ("router", MatrixFields),
        ("shared_gate", MatrixFields),
        ("shared", MlpFields),
        ("experts", ctypes.POINTER(MlpFields)),
        *((name, address) for name in ("before", "after", "bias")),
        ("epsilon", number),
        ("factor", number),
        *((name, integer) for name in ("hidden", "count", "first", "own", "per_token", "scores", "normalize")),
        *((name, integer) for name in ("groups", "kept_groups", "group_best", "partial", "dispatched")),
    ]


class LayerFields(ctypes.Structure):
    """One half of each kind; the others are null."""

    _fields_ = [
        ("attention", ctypes.POINTER(AttentionFields)),
        ("latent", ctypes.POINTER(LatentFields)),
        ("recurrent", ctypes.POINTER(RecurrentFields)),
        ("mlp", ctypes.POINTER(MlpFields)),
        ("experts", ctypes.POINTER(ExpertFields)),
    ]


class DrawFields(ctypes.Structure):
    _fields_ = [
        *((name, address) for name in ("logits", "masses", "floors", "top_p", "numbers", "ends", "ids", "certain")),
        ("doubt", ctypes.c_double),
        ("stride", ctypes.c_int64),
        ("rows", integer),
        ("vocabulary", integer),
    ]


def signatures(library: ctypes.CDLL) -> None:
    """Declare the functions' signatures to ctypes."""
    for name, result, arguments in (
        ("pontil_abi", integer, []),
        ("pontil_open", address, [integer]),
        ("pontil_close", None, [address]),
        ("pontil_borrow", None, [address, address, integer, ctypes.c_uint32]),
        ("pontil_group_open", address, [address, size, integer, integer, ctypes.c_double]),
        ("pontil_group_close", None, [address]),
        ("pontil_join", None, [address, address]),
        ("pontil_group_meet", integer, [address]),
        ("pontil_group_gather", integer, [address, address, size, size, address]),
        ("pontil_group_choose", integer, [address, address, size, size, address, address]),
        ("pontil_group_all_to_all", integer, [address, address, address, size, address]),
        ("pontil_group_fault", ctypes.c_uint64, [address]),
        ("pontil_attention_half", integer, [address, address, address, address]),
        ("pontil_latent_half", integer, [address, address, address, address]),
        ("pontil_recurrent_half", integer, [address, address, address, address]),
        ("pontil_take_kept", None, [address, address, integer, address]),
        ("pontil_mlp_half", integer, [address, address, integer, address, address]),
        ("pontil_expert_half", integer, [address, address, integer, address, address]),
        ("pontil_layers", integer, [address, address, integer, address, address]),
        ("pontil_linear", None, [address, address, integer, address, address, number, address, address, address]),
        ("pontil_draw", None, [address]),
        ("pontil_top_logits", None, [address, ctypes.c_int64, address, address, integer, integer, integer, address]),
        ("pontil_multiply_adds", ctypes.c_int64, [address, integer, ctypes.c_int64]),
        ("pontil_read", None, [address, address, ctypes.c_int64]),
    ):
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
