# SPDX-License-Identifier: Apache-2.0
"""The facts about a model that an architecture needs, from any file format. No torch here: the proxy reads it too."""

import hashlib
import json
import math
from dataclasses import asdict, dataclass, replace
from typing import Literal


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """The change of rotary frequencies by which a model reads further than it was first trained for.

    `kind` decides which of the other fields count. "linear": `factor` divides every frequency (Chen et al., 2023).
    "llama3": it divides those of long waves, with a smooth transition between `low_freq_factor` and `high_freq_factor`
    waves in `original_max_len` positions. "yarn" (Peng et al., 2023): likewise between `beta_slow` and `beta_fast`
    turns in `original_max_len` positions; `truncate` rounds these bounds to whole dimensions, and `attention_factor`
    multiplies cosines and sines. "factors": the checkpoint holds a divisor for each frequency (`model.rope_factors`).
    """

    kind: str
    factor: float = 1.0
    original_max_len: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    truncate: bool = True


@dataclass(frozen=True, slots=True)
class SharedExpertConfig:
    """A gated MLP that every row goes through beside its chosen experts. `name` is its own in the checkpoint. `gated`:
    its result is multiplied by the sigmoid of a product of one output (`{name}_gate`)."""

    name: str
    intermediate_size: int
    gated: bool = False


@dataclass(frozen=True, slots=True)
class RoutingConfig:
    """The way from a router's products to the weights of a row's experts.

    `scores` are the function of the products. With a `bias` each expert has a number that is added to its score for the
    choice, and not for its weight (Wang et al., 2024); with a `product_bias` one that is added to its product. With
    `groups`, only experts of the `kept_groups` best groups of neighbours are chosen; a group's score is the sum of its
    `group_best` best. The weights are multiplied by `factor`.
    """

    scores: Literal["softmax", "sigmoid"] = "softmax"
    bias: bool = False
    product_bias: bool = False
    groups: int = 1
    kept_groups: int = 1
    group_best: int = 1
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """A mixture of experts: each row goes through `per_token` of `count` gated MLPs of `intermediate_size`.

    `normalize`: the chosen experts' weights are divided by their sum. Layers in `dense_layers` have one MLP instead.
    With `clamp` (its sharpness and its limit) experts have biases and a clamped activation.
    """

    count: int
    per_token: int
    intermediate_size: int
    normalize: bool
    dense_layers: tuple[int, ...] = ()
    shared: SharedExpertConfig | None = None
    routing: RoutingConfig = RoutingConfig()
    clamp: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class LatentConfig:
    """Multi-head latent attention (DeepSeek-AI, 2024): the keys and values of all heads are products of one latent
    vector of `rank` numbers for each position.

    A head's key has `key_dim` numbers made from the latent and `rotary_dim` rotated ones, which all heads share; its
    value has `value_dim`. Queries are products of `query_rank` numbers, or with None of the hidden state.
    """

    rank: int
    query_rank: int | None
    key_dim: int
    rotary_dim: int
    value_dim: int

    @property
    def query_dim(self) -> int:
        return self.key_dim + self.rotary_dim

    @property
    def stored_dim(self) -> int:
        """The numbers of a position that are stored: the latent and the rotated part of the keys."""
        return self.rank + self.rotary_dim


@dataclass(frozen=True, slots=True)
class RecurrentConfig:
    """Layers that have a state of one size in the place of keys and values, and what they multiply.

    Layers number `layers` are such ones: "gated_delta" (Yang et al., 2024, arXiv 2412.06464), whose projections in are
    one for each use, or "joined_gated_delta", where one has all that belongs to a key head side by side, or "mamba2"
    (Dao and Gu, 2024, arXiv 2405.21060), whose groups are key heads here.

    A state is a matrix [key_dim, value_dim] for each of `value_heads`, of which equally many neighbours share the query
    and the key of one of `key_heads`. Queries, keys and values go through a causal convolution over `width` positions
    before, each channel on its own.
    """

    kind: Literal["gated_delta", "joined_gated_delta", "mamba2"]
    layers: tuple[int, ...]
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    width: int

    @property
    def channels(self) -> int:
        """The numbers of a position that go through the convolution."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def layer_numbers(self) -> int:
        """The float32 numbers of the state of one layer: the matrices, and the channels of the last positions."""
        return self.value_heads * self.key_dim * self.value_dim + (self.width - 1) * self.channels

    @property
    def made_numbers(self) -> int:
        """The numbers of a position that the product in makes: those of the convolution, and of each value head gates,
        a time and, for the delta rule, a strength."""
        return self.channels + self.value_heads * (self.value_dim + (1 if self.kind == "mamba2" else 2))

    @property
    def sizes(self) -> tuple[int, int, int, int, int]:
        return self.key_heads, self.value_heads, self.key_dim, self.value_dim, self.width

    def divided(self, ranks: int) -> "RecurrentConfig":
        """The part of one of so many ranks, which divide the heads."""
        return replace(self, key_heads=self.key_heads // ranks, value_heads=self.value_heads // ranks)


@dataclass(frozen=True, slots=True)
class Factors:
    """Numbers that a model multiplies by: its embeddings by `embedding`, what each half of a layer adds by `residual`.
    Logits are divided by `logits`, and scores by the square root of `query_scalar` (None: of `head_dim`)."""

    query_scalar: float | None = None
    embedding: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Sizes in elements. `architecture` is Hugging Face's `model_type` ("llama").

    `windows` holds for each layer the number of positions that a query sees, itself included, or None for all of them;
    empty means all of them everywhere. `local_rope_theta` is the base of layers with a window if it differs;
    `rope_scaling` does not apply to those. `qkv_bias` and `output_bias`: the attention's projections in and out have
    biases.

    The layers' `mixer` of positions is attention to the keys and values of heads (None), or something else. With
    `latent` attention there is one KV head, and `head_dim` is what it stores for a position (decision 054). With
    `recurrent` layers the others alone have keys and values, and beside the delta rule each query head
    a gate (decision 129). Rotary positions turn `rotary_dim` dimensions of a head (None: all, 0: none): those of its
    halves together, or `interleaved` ones.

    `sinks`: each head has a score that belongs to no key. `head_norms`: queries and keys are normed where the
    architecture leaves that open. With a `weight_block`, weights are floats of 8 bits, and so many outputs and inputs
    share a scale.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_len: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    dtype: str
    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None = None
    rope_scaling: RopeScaling | None = None
    local_rope_theta: float | None = None
    windows: tuple[int | None, ...] = ()
    factors: Factors = Factors()
    qkv_bias: bool = False
    output_bias: bool = False
    experts: ExpertConfig | None = None
    mixer: LatentConfig | RecurrentConfig | None = None
    rotary_dim: int | None = None
    interleaved: bool = False
    weight_block: tuple[int, int] | None = None
    head_norms: bool = False
    sinks: bool = False

    @property
    def latent(self) -> LatentConfig | None:
        return self.mixer if isinstance(self.mixer, LatentConfig) else None

    @property
    def recurrent(self) -> RecurrentConfig | None:
        return self.mixer if isinstance(self.mixer, RecurrentConfig) else None

    def is_recurrent(self, layer: int) -> bool:
        """Return whether this layer has a state in the place of keys and values."""
        return self.recurrent is not None and layer in self.recurrent.layers

    @property
    def kv_layers(self) -> int:
        """The number of layers with keys and values."""
        return self.num_layers - (0 if self.recurrent is None else len(self.recurrent.layers))

    def place(self, layer: int) -> int:
        """The number of a layer among those that store the same kind of thing as it does."""
        if self.recurrent is None:
            return layer
        before = sum(number < layer for number in self.recurrent.layers)
        return before if self.is_recurrent(layer) else layer - before

    @property
    def state_numbers(self) -> int:
        """The float32 numbers of a sequence's states in all layers."""
        return 0 if self.recurrent is None else len(self.recurrent.layers) * self.recurrent.layer_numbers

    @property
    def rotated(self) -> int:
        """The number of dimensions of a head that are rotated."""
        return self.head_dim if self.rotary_dim is None else self.rotary_dim

    @property
    def kv_planes(self) -> int:
        """The number of tensors of KV heads that a layer stores: keys and values, or one latent."""
        return 2 if self.latent is None else 1

    @property
    def query_scale(self) -> float:
        """The factor of the product of a query and a key."""
        return 1.0 / math.sqrt(self.factors.query_scalar or self.head_dim)

    def window(self, layer: int) -> int | None:
        """The number of positions that a query of this layer sees, itself included; None for all."""
        return self.windows[layer] if self.windows else None

    @property
    def mlp_sizes(self) -> tuple[int, ...]:
        """The inner sizes of MLPs that are divided over ranks."""
        shared = None if self.experts is None else self.experts.shared
        return (self.intermediate_size,) if shared is None else (self.intermediate_size, shared.intermediate_size)

    def is_sparse(self, layer: int) -> bool:
        """Return whether this layer is a mixture of experts."""
        return self.experts is not None and layer not in self.experts.dense_layers

    def fingerprint(self) -> str:
        """A hash that is equal for equal configurations. The loader adds the identity of the weights."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class DraftLayerForm:
    """The differences between the kinds of such layers. With `normed`, embedding and state are normed before they are
    joined. `bias`: their product has one. Its layer has no norms of the names `without_norms`. With `feeds_normed` the
    next guess starts from a result behind the layer's last norm."""

    normed: bool
    bias: bool = False
    feeds_normed: bool = False
    without_norms: frozenset[str] = frozenset()
