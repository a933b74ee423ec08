# SPDX-License-Identifier: Apache-2.0
"""A mixture of experts (Shazeer et al., 2017) in the place of a layer's MLP."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pontil.gpu_ops.elementwise import apply
from pontil.gpu_ops.kernels.experts import ExpertHalf, OwnExperts, SharedHalf
from pontil.gpu_ops.kernels.layer import GatedKind, Norms
from pontil.gpu_ops.kernels.linear import Product, matrix_of
from pontil.gpu_ops.kernels.weights.structures import NOT_DISPATCHED, OWN_TILES, SHARES
from pontil.gpu_ops.parameters.adapters import NO_ADAPTER
from pontil.gpu_ops.parameters.experts import ExpertChoice
from pontil.gpu_ops.products.batch_invariance import GENERATED_ROWS
from pontil.gpu_ops.products.device_adapters import DeviceAdapters
from pontil.gpu_ops.products.experts import GroupedExperts, add_by_ratings, weights_of
from pontil.gpu_ops.products.linear import Linear
from pontil.gpu_ops.products.routing import choose_experts
from pontil.runtime.models.adapters import attach
from pontil.runtime.models.config import ExpertConfig, SharedExpertConfig
from pontil.runtime.models.layers.expert_dispatch import ExpertDispatch
from pontil.runtime.models.layers.mlp import GatedMlp
from pontil.runtime.models.partition import Split, whole
from pontil.runtime.models.weights import Weights


class SharedExpert:
    """An MLP for every row, whose result is added to that of the row's own experts. Where it has a gate, a row's result
    is multiplied by a number between 0 and 1; its product is float32, as the router is."""

    def __init__(self, config: SharedExpertConfig, hidden: int, prefix: str, weights: Weights) -> None:
        name = prefix + config.name
        self.mlp = GatedMlp(weights, name + ".", hidden, config.intermediate_size)
        self.gate: Product | None = None
        if config.gated:
            gate = f"{name}_gate.weight"
            place = weights.places.of(hidden, ((f"{name}_gate", 1),), Split(), dtype=torch.float32)
            self.gate = weights.product(
                gate, lambda: (weights.read(gate, 1, hidden, dtype=torch.float32), None), adapted=place
            )

    @property
    def linears(self) -> list[Product]:
        return self.mlp.linears if self.gate is None else [*self.mlp.linears, self.gate]

    def half(self, norms: Norms) -> SharedHalf:
        mlp = self.mlp.half(Norms(norms.epsilon, norms.before))
        return SharedHalf(mlp, None if self.gate is None else matrix_of(self.gate))

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden_size] in the weights' dtype to float32 of the same shape."""
        made = self.mlp(x).float()
        return made if self.gate is None else made * apply(torch.sigmoid, self.gate(x.float()))


class Experts:
    """Each row goes through the experts its router rates highest, and their results are added by these ratings.

    The number of rows that an expert sees depends on the batch. To be batch-invariant all the same (C16), experts
    compute tiles of exactly GENERATED_ROWS rows, short ones padded with zeros, and a row's results are added in the
    order of its ratings, one after the other. The router is float32: a rounded rating could choose another expert.

    On a device the experts' products are grouped: one kernel computes the rows of all of them, from copies of their
    weights behind each other, and no tile depends on others.

    A rank has some of the experts, whole, and the router. `own` are their numbers. The ranks exchange the results of
    the experts that were chosen, or, row-parallel, each adds up those of its own and they add these sums, or,
    expert-parallel or data-parallel, rows travel. A shared expert is divided like any MLP.
    """

    def __init__(self, config: ExpertConfig, hidden: int, prefix: str, weights: Weights) -> None:
        self.config, self.kernels = config, weights.kernels

        def router() -> tuple[Tensor, Tensor | None]:
            weight = weights.read(prefix + "gate.weight", config.count, hidden, dtype=torch.float32)
            biased = config.routing.product_bias
            return weight, weights.read(prefix + "gate.bias", config.count, dtype=torch.float32) if biased else None

        place = weights.places.of(hidden, ((f"{prefix}gate", config.count),), Split(), dtype=torch.float32)
        self.router = weights.product(prefix + "gate", router, adapted=place)
        scored: Tensor | None = None
        if config.routing.bias:
            scored = weights.take(prefix + "gate.e_score_correction_bias", config.count, dtype=torch.float32)
        self.choice = choice_of(config, scored)
        self.partition, self.communicator = weights.experts_partition, weights.experts_communicator
        self.own, self.deterministic = self.partition.experts(config.count), weights.deterministic
        self.takes_rows = self.partition.data_parallel
        self.dispatch: ExpertDispatch | None = None
        if self.partition.expert_parallel or self.takes_rows:
            self.dispatch = ExpertDispatch(self.communicator, len(self.own), own_tiles=self.takes_rows)
        self.experts: list[GatedMlp] = []
        for number in range(config.count):
            name, inner = f"{prefix}experts.{number}.", config.intermediate_size
            if number in self.own:
                biased = config.clamp is not None
                made = GatedMlp(weights, name, hidden, inner, GatedKind(clamp=config.clamp), whole, biased)
                self.experts.append(made)
                continue
            for part, shape in (("gate", (inner, hidden)), ("up", (inner, hidden)), ("down", (hidden, inner))):
                weights.skip(f"{name}{part}_proj", *shape, bias=config.clamp is not None)
        # Data-parallel ranks do not know the adapters of each other's rows.
        places = [] if self.takes_rows else weights.places.of_experts(prefix, config, hidden, self.own)
        self.rows = weights.places.rows
        self.rows_of_expert = weights.places.expert_rows if places else None
        self.grouped: GroupedExperts | None = None
        if weights.device.type != "cpu":
            # Torch's product of all experts knows no adapters.
            grouped = self.group([place.held for place in places if isinstance(place.held, DeviceAdapters)])
            self.grouped = grouped if places else weights.by_torch.experts(grouped)
        for number, expert in enumerate(self.experts if places else ()):
            attach(places[0].held, expert.gate_up, number)
            attach(places[1].held, expert.down.product, number)
        self.shared = None if config.shared is None else SharedExpert(config.shared, hidden, prefix, weights)

    def group(self, adapters: Sequence[DeviceAdapters]) -> GroupedExperts:
        """The experts' products together, in their place, with these adapters, if they have places for some."""
        experts, self.experts = self.experts, []
        gate_up, down = (
            weights_of([one for one in some if isinstance(one, Linear)])
            for some in (
                [expert.gate_up for expert in experts],
                [expert.down.product for expert in experts],
            )
        )
        return GroupedExperts(gate_up, down, self.own.start, self.config.clamp, adapters)

    @property
    def linears(self) -> list[Product]:
        shared = [] if self.shared is None else self.shared.linears
        return [self.router, *(linear for expert in self.experts for linear in expert.linears), *shared]

    def half(self, norms: Norms) -> ExpertHalf:
        """The same by the kernels, with these norms of a layer: they compute the rows that an expert has together, and
        need no tiles of a fixed size."""
        assert self.kernels is not None
        halves = [expert.half(Norms(0.0)) for expert in self.experts]
        dispatched = NOT_DISPATCHED if self.dispatch is None else OWN_TILES if self.takes_rows else SHARES
        own = OwnExperts(halves, self.own.start, self.partition.row_parallel and not dispatched, dispatched)
        shared = None if self.shared is None else self.shared.half(norms)
        return ExpertHalf(self.kernels, self.choice, matrix_of(self.router), own, norms, shared)

    def __call__(self, x: Tensor) -> Tensor:
        """Map x [rows, hidden_size] in the weights' dtype to float32 of the same shape."""
        ratings, chosen = self.route(x)
        if self.dispatch is not None:
            total = self.dispatch(x, ratings, chosen, self.own_results)
        elif self.partition.row_parallel:
            total = self.communicator.all_reduce(self.own_sums(x, chosen, ratings), self.deterministic)
        else:
            total = add_by_ratings(self.results(x, chosen), ratings)
        return total if self.shared is None else total + self.shared(x)

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Ratings float32 and numbers int64 of each row's experts, both [rows, per_token], highest first."""
        return choose_experts(self.router(x.float()), self.choice)

    def results(self, x: Tensor, chosen: Tensor) -> Tensor:
        """The results of each row's experts, float32 [rows, per_token, hidden_size]."""
        owners = chosen.view(-1) // len(self.own)
        return self.communicator.choose_rows(self.own_results(x, chosen), owners).view(*chosen.shape, -1)

    def own_sums(self, x: Tensor, chosen: Tensor, ratings: Tensor) -> Tensor:
        """The sums of the results of this rank's experts by their ratings, float32 [rows, hidden_size]."""
        results = self.own_results(x, chosen).view(*chosen.shape, -1)
        elsewhere = chosen // len(self.own) != self.partition.rank
        return add_by_ratings(results.masked_fill_(elsewhere.unsqueeze(-1), 0.0), ratings)

    def own_results(self, x: Tensor, chosen: Tensor, rows: Tensor | None = None) -> Tensor:
        """The results of this rank's experts, float32 [rows * per_token, hidden_size]. Others are not set. The adapters
        of x are those of these `rows` of the model's tile, or of all of them."""
        if self.grouped is not None:
            return self.grouped(x, chosen).flatten(0, 1)
        if rows is None:
            return self.one_by_one(x, chosen, self.rows.of_tile(len(x)))
        return self.one_by_one(x, chosen, self.rows.of_tile(int(rows.max()) + 1 if len(rows) else 0)[rows])

    def one_by_one(self, x: Tensor, chosen: Tensor, adapters: Tensor) -> Tensor:
        """Each expert's results in turn, float32 [rows * per_token, hidden_size], for rows with these adapters."""
        order = chosen.view(-1).argsort(stable=True)
        counts = chosen.view(-1).bincount(minlength=self.config.count).tolist()
        results = x.new_empty(chosen.numel(), x.shape[1], dtype=torch.float32)
        parts = order.split(counts)[self.own.start : self.own.stop]
        adapted = bool((adapters != NO_ADAPTER).any())
        if self.rows_of_expert is not None and not adapted:
            self.rows_of_expert.choose(())
        for expert, places in zip(self.experts, parts, strict=True):
            for part in places.split(GENERATED_ROWS):
                if len(part):
                    rows = part // self.config.per_token
                    tile = x[rows]
                    if self.rows_of_expert is not None and adapted:
                        self.rows_of_expert.choose(adapters[rows].tolist())
                    tile = F.pad(tile, (0, 0, 0, GENERATED_ROWS - len(part)))
                    results[part] = expert(tile)[: len(part)].float()
        return results


def choice_of(config: ExpertConfig, bias: Tensor | None) -> ExpertChoice:
    ways = config.routing
    return ExpertChoice(
        config.count, config.per_token, ways.scores == "sigmoid", config.normalize, bias, ways.groups, ways.kept_groups,
        ways.group_best, ways.factor,
    )  # fmt: skip
