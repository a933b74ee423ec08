# SPDX-License-Identifier: Apache-2.0
"""The part of a model that one rank of a worker holds and computes. No torch here: plans are checked by it too.

A product is cut by its outputs, so that a result has the bits of one process (docs/decisions/050), unless ranks are
row-parallel: then one that follows a divided product is cut by its inputs (docs/decisions/092).
"""

from collections.abc import Callable
from dataclasses import dataclass

from pontil.runtime.errors import ModelError
from pontil.runtime.models.config import ModelConfig

# Outputs of a rank are whole panels of the CPU's kernels.
PANEL = 16


@dataclass(frozen=True, slots=True)
class Partition:
    """Rank `rank` of `size`. If ranks are `row_parallel`, they add parts of sums instead of exchanging inputs. If they
    are `expert_parallel`, each has a share of the rows that go through experts, and sends them to where these are. If
    they are `data_parallel`, each has rows of its own, and only experts are divided."""

    rank: int = 0
    size: int = 1
    row_parallel: bool = False
    expert_parallel: bool = False
    data_parallel: bool = False

    def columns(self, outputs: int) -> range:
        """A rank's outputs of a product: an equal share of neighbouring ones."""
        share = outputs // self.size
        return range(self.rank * share, (self.rank + 1) * share)

    def heads(self, heads: int, head_dim: int) -> range:
        """A rank's outputs of a product for heads: an equal share of whole heads, or, where there are fewer heads than
        ranks, one that it shares with its neighbours."""
        if heads >= self.size:
            return self.columns(heads * head_dim)
        head = self.rank * heads // self.size
        return range(head * head_dim, (head + 1) * head_dim)

    def vocabulary(self, size: int) -> range:
        """A rank's ids: whole panels, so that the last rank may have fewer."""
        share = -(-size // (self.size * PANEL)) * PANEL
        return range(min(size, self.rank * share), min(size, (self.rank + 1) * share))

    def experts(self, count: int) -> range:
        """A rank's experts, whole."""
        return self.columns(count)


# The division of a product: from a rank and the number of outputs to the outputs of this rank.
Cut = Callable[[Partition, int], range]


def whole(partition: Partition, outputs: int) -> range:
    """Every rank has all outputs."""
    return range(outputs)


def by_columns(partition: Partition, outputs: int) -> range:
    return partition.columns(outputs)


def by_heads(head_dim: int) -> Cut:
    return lambda partition, outputs: partition.heads(outputs // head_dim, head_dim)


def by_vocabulary(partition: Partition, outputs: int) -> range:
    return partition.vocabulary(outputs)


@dataclass(frozen=True, slots=True)
class Split:
    """The part of a weight that each rank has: some outputs, with all inputs, or all outputs with some inputs. With
    some inputs a rank's results are parts of sums."""

    outputs: Cut = whole
    inputs: Cut = whole

    @property
    def is_partial(self) -> bool:
        return self.inputs is not whole


def joining(partition: Partition, made: Cut) -> Split:
    """The split of a product whose inputs are what the ranks have made by this cut: attention's projection out, and the
    second product of an MLP."""
    if made is whole:
        return Split()
    return Split(inputs=made) if partition.row_parallel else Split(outputs=by_columns)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The choices about products: `deterministic` ones on a GPU have rows whose bits do not depend on the batch, and
    those of ranks that are `row_parallel` have bits that depend on the number of ranks. Ranks that are
    `expert_parallel` compute the same bits in another place, and those that are `data_parallel` those of other rows
    (docs/decisions/094). Those that are named in `by_torch` are computed by other kernels (docs/decisions/124). On a
    GPU products have places for `adapters` only where some may come: each step starts kernels for them
    (docs/decisions/154)."""

    deterministic: bool = False
    row_parallel: bool = False
    expert_parallel: bool = False
    data_parallel: bool = False
    by_torch: tuple[str, ...] = ()
    adapters: bool = False


USUAL = Arithmetic()


def check_division(config: ModelConfig, ranks: int) -> None:
    """Raise ModelError if the model cannot be divided over so many ranks."""
    reason = obstacle(config, ranks)
    if reason is not None:
        possible = [str(size) for size in range(1, config.num_heads + 1) if obstacle(config, size) is None]
        raise ModelError(
            f"this model cannot be divided over {ranks} devices ({reason}): "
            f"join {' or '.join(possible[1:])} devices with +"
            if possible[1:]
            else f"this model cannot be divided over several devices ({reason}): give each worker one device"
        )


def check_dispatch(config: ModelConfig, flag: str = "--expert-parallel") -> None:
    """Raise ModelError if the model has no rows that ranks could send each other."""
    if config.experts is None:
        raise ModelError(f"this model has no experts, and {flag} shares them out: leave it out")


def check_states(config: ModelConfig, device: str, guesses: bool) -> None:
    """Raise ModelError if the model has recurrent layers and tokens are guessed on a GPU, whose kernels know no steps
    that verify."""
    if config.recurrent is not None and guesses and device != "cpu":
        options = "--speculative-tokens and --speculative-model"
        raise ModelError(f"guesses of a model with recurrent layers are verified on CPUs only: leave {options} out")


def check_shares(config: ModelConfig, ranks: int) -> None:
    """Raise ModelError if so many data-parallel ranks cannot have equally many of the model's experts."""
    check_dispatch(config, "--data-parallel-attention")
    if config.experts is not None and config.experts.count % ranks:
        raise ModelError(
            f"{ranks} devices cannot have equal shares of the model's {config.experts.count} experts: "
            "join another number of devices with +"
        )


def obstacle(config: ModelConfig, ranks: int) -> str | None:
    """Return why the model cannot be divided over so many ranks, or None."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if ranks == 1:
        return None
    if heads % ranks:
        return f"it has {heads} query heads"
    if kv_heads % ranks and ranks % kv_heads:
        return f"it has {kv_heads} KV heads"
    if config.recurrent is not None and (config.recurrent.key_heads % ranks or kv_heads % ranks):
        return f"it has {kv_heads} KV heads and {config.recurrent.key_heads} recurrent ones, which are divided whole"
    if config.hidden_size % (ranks * PANEL):
        return f"its hidden size is {config.hidden_size}"
    for size in config.mlp_sizes:
        if size % (ranks * PANEL):
            return f"its intermediate size is {size}"
    if Partition(ranks - 1, ranks).vocabulary(config.vocab_size).start >= config.vocab_size:
        return f"its vocabulary has {config.vocab_size} tokens"
    if config.experts is not None and config.experts.count % ranks:
        return f"it has {config.experts.count} experts"
    return None
