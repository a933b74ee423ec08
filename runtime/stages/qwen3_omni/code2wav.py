# SPDX-License-Identifier: Apache-2.0
"""Code2Wav: frames of codes to samples. A few layers of attention over a sliding window, then convolutions that look
back only, and that make more and more rows with fewer and fewer channels.

Everything is float32, as sound needs it. A chunk is computed by itself, so its samples depend on its own frames only,
and in the last bits on the number of torch's threads, and on the kernels that compute its products.
"""

import torch
from torch import Tensor

from pontil.gpu_ops.activation import silu_and_mul
from pontil.gpu_ops.kernels.linear import Product
from pontil.gpu_ops.kv.sequence_attention import attend_within
from pontil.gpu_ops.rotary import apply_rotary, rotary_frequencies, rotary_table
from pontil.runtime.models.layers.norm import Norm
from pontil.runtime.models.layers.rotary import Angles
from pontil.runtime.models.weights import Weights
from pontil.runtime.stages.qwen3_omni.config import Code2WavConfig
from pontil.runtime.stages.qwen3_omni.convolutions import (
    CausalConvolution,
    ConvNextBlock,
    DecoderBlock,
    Snake,
    UpsamplingConvolution,
)

KERNEL = 7


class FrameLayer:
    """Attention over a sliding window and a gated MLP; each result is multiplied by a number for each channel before it
    is added."""

    def __init__(self, config: Code2WavConfig, index: int, weights: Weights) -> None:
        prefix, hidden = f"pre_transformer.layers.{index}.", config.hidden_size
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        parts = [(f"{prefix}self_attn.{name}_proj", n) for name, n in (("q", queries), ("k", keys), ("v", keys))]
        self.norms = [
            Norm(weights, prefix + name, hidden, config.rms_norm_eps)
            for name in ("input_layernorm", "post_attention_layernorm")
        ]
        self.qkv = weights.linear(hidden, *parts, bias=config.bias)
        self.o = weights.linear(queries, (f"{prefix}self_attn.o_proj", hidden), bias=config.bias)
        inner = config.intermediate_size
        self.gate_up = weights.linear(hidden, (f"{prefix}mlp.gate_proj", inner), (f"{prefix}mlp.up_proj", inner))
        self.down = weights.linear(inner, (f"{prefix}mlp.down_proj", hidden))
        self.scales = [weights.take(f"{prefix}{name}_layer_scale.scale", hidden) for name in ("self_attn", "mlp")]
        self.heads, self.head_dim, self.window = (config.num_heads, config.num_kv_heads), config.head_dim, config.window

    def __call__(self, x: Tensor, angles: Angles) -> Tensor:
        """Compute the layer for x [rows, hidden_size], the rows of one chunk."""
        x = x + self.scales[0] * self.attend(self.norms[0](x), angles)
        return x + self.scales[1] * self.down(silu_and_mul(self.gate_up(self.norms[1](x))))

    def attend(self, x: Tensor, angles: Angles) -> Tensor:
        heads, kv_heads = self.heads
        q, k, v = self.qkv(x).view(len(x), -1, self.head_dim).split((heads, kv_heads, kv_heads), dim=1)
        q, k = apply_rotary(q, *angles), apply_rotary(k, *angles)
        made = attend_within(q, k, v, scale=self.head_dim**-0.5, causal=True, window=self.window)
        return self.o(made.reshape(len(x), -1))


class Code2Wav:
    """The decoder of frames. It holds no state between chunks."""

    def __init__(self, config: Code2WavConfig, weights: Weights) -> None:
        assert weights.dtype == torch.float32
        self.config, self.device, hidden = config, weights.device, config.hidden_size
        self.embedding = weights.take("code_embedding.weight", config.codebook_size * config.groups, hidden)
        self.offsets = torch.arange(config.groups, device=self.device) * config.codebook_size
        self.layers = [FrameLayer(config, index, weights) for index in range(config.num_layers)]
        self.norm = Norm(weights, "pre_transformer.norm", hidden, config.rms_norm_eps)
        self.upsampling = [
            (
                UpsamplingConvolution(weights, f"upsample.{index}.0.conv", (hidden, hidden), ratio, ratio),
                ConvNextBlock(weights, f"upsample.{index}.1.", hidden),
            )
            for index, ratio in enumerate(config.ratios)
        ]
        self.first = CausalConvolution(weights, "decoder.0.conv", (hidden, config.channels), KERNEL)
        self.blocks = [
            DecoderBlock(weights, f"decoder.{index + 1}.block.", config.channels >> index, rate)
            for index, rate in enumerate(config.rates)
        ]
        end, last = len(config.rates) + 1, config.channels >> len(config.rates)
        self.activation = Snake(weights, f"decoder.{end}", last)
        self.last = CausalConvolution(weights, f"decoder.{end + 1}.conv", (last, 1), KERNEL)
        weights.finish()

    @property
    def linears(self) -> list[Product]:
        return [one for layer in self.layers for one in (layer.qkv, layer.o, layer.gate_up, layer.down)]

    @torch.inference_mode()
    def decode(self, codes: Tensor, context: int = 0) -> Tensor:
        """Return the samples, float32 [samples] in [-1, 1], of a chunk of codes int64 [context + frames, groups]. Its
        first `context` frames were in an earlier chunk: what that could make of them is left out, so the samples of all
        chunks are as many as those of all frames at once."""
        hidden = self.embedding[codes + self.offsets].mean(1)
        angles = self.angles(len(codes))
        for layer in self.layers:
            hidden = layer(hidden, angles)
        sound = self.norm(hidden).T.unsqueeze(0)
        for convolution, block in self.upsampling:
            sound = block(convolution(sound))
        sound = self.first(sound)
        for stage in self.blocks:
            sound = stage(sound)
        sound = self.last(self.activation(sound)).clamp(-1, 1)
        return sound[0, 0, self.config.samples(context) :].contiguous()

    def angles(self, rows: int) -> Angles:
        cos, sin = rotary_table(rotary_frequencies(self.config.head_dim, self.config.rope_theta), rows)
        return cos.to(self.device), sin.to(self.device)
