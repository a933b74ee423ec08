# SPDX-License-Identifier: Apache-2.0
"""The plan of one process, and of the processes that are the ranks of one worker."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.launcher.foundation.held_devices import HeldDevices
from pontil.launcher.host.device_list import JOIN
from pontil.launcher.host.devices import CPU, HostDevices, Placement
from pontil.launcher.options.worker_roles import TEXT_ROLES, WORKER_ROLES
from pontil.runtime.foundation.draft_names import MTP
from pontil.runtime.foundation.number_ranges import spell

# Keys of a child's configuration that name a model.
MODEL_KEYS = ("model", "embedding_model", "reranking_model", "speculative_model")


@dataclass(frozen=True, slots=True)
class ChildPlan:
    """The plan of one process. `config` holds the fields of runtime.config's WorkerConfig or ProxyConfig as JSON
    values. It may contain keys, so it is never shown whole.

    A worker of several ranks is planned by that of its rank 0, which has the worker's name; `followers` are the others.
    Data-parallel ranks are planned alike, though each is a worker to all but the supervisor.
    """

    name: str
    role: str
    device: str
    cores: tuple[int, ...]
    config: dict[str, Any] = field(repr=False)
    followers: tuple["ChildPlan", ...] = ()

    @property
    def members(self) -> tuple["ChildPlan", ...]:
        """The plans of all ranks, in order."""
        return (replace(self, followers=()), *self.followers) if self.followers else (self,)

    @property
    def ranks(self) -> int:
        """The number of its ranks on this host."""
        return 1 + len(self.followers)

    @property
    def is_data_parallel(self) -> bool:
        """Return whether each rank is a worker of its own, with a share of the experts."""
        return bool(self.config.get("data_parallel_size", 1) > 1)

    @property
    def divisions(self) -> int:
        """The number of ranks over which products are divided."""
        return 1 if self.is_data_parallel else self.size

    @property
    def nodes(self) -> int:
        """The number of hosts that have ranks of it."""
        return int(self.config.get("nnodes", 1))

    @property
    def size(self) -> int:
        """The number of its ranks on all hosts, each of which has as many."""
        return self.nodes * self.ranks

    @property
    def workers(self) -> tuple["ChildPlan", ...]:
        """The plans of the processes that register with proxies."""
        return self.members if self.is_data_parallel else self.members[:1]

    @property
    def is_follower(self) -> bool:
        """Return whether this is a rank other than the first of its group."""
        return bool(self.config.get("rank") or self.config.get("data_parallel_rank"))

    @property
    def is_proxy(self) -> bool:
        return self.role == "proxy"

    @property
    def takes_commands(self) -> bool:
        return self.role != "prepare"

    @property
    def keeps_terminal(self) -> bool:
        """Return whether it may write to the launcher's terminal itself, alone there: a download shows its own
        progress."""
        return self.role == "prepare"

    @property
    def keeps_memory(self) -> bool:
        """Return whether its KV outlives its processes: all of it is in the host's memory then."""
        return bool(self.config.get("keep_kv")) and all(member.device == CPU for member in self.members)

    @property
    def computes(self) -> bool:
        """Return whether this is a worker, which loads torch."""
        return self.role in WORKER_ROLES

    @property
    def threads(self) -> int | None:
        """The number of threads that a math library may start; None leaves it to the library."""
        return len(self.cores) if self.computes else None

    @property
    def place(self) -> str:
        """The devices of all ranks, as they are shown: cores are named where several ranks have some."""
        if not self.followers:
            return self.device
        return JOIN.join(
            f"cpu:{spell(member.cores)}" if member.device == CPU else member.device for member in self.members
        )

    @property
    def devices(self) -> frozenset[str]:
        """The GPUs that it computes on, or its cores if it computes on the CPU."""
        cores = {f"core {core}" for member in self.members if member.device == CPU for core in member.cores}
        return frozenset(cores | {member.device for member in self.members if member.device != CPU})

    @property
    def group(self) -> str:
        """The workers that can stand in for it: those of its role, if that has a model of its own, those of its stage
        in a model of several, those of a further model, or (empty) those that generate."""
        return self.role if self.role in TEXT_ROLES else self.config.get("node") or self.further_model or ""

    @property
    def further_model(self) -> str | None:
        """The name of the model that it serves beside the first one of a launch; None for a worker of that."""
        return self.config.get("further_model")

    @property
    def endpoints(self) -> tuple[str, ...]:
        """The addresses at which a worker's peers and its own ranks reach it."""
        names = ("peer_endpoint", "rank_endpoint")
        return tuple(member.config[name] for member in self.workers for name in names if member.config[name])

    def configured(self, **values: Any) -> "ChildPlan":
        """Return the same plan with these values in the configuration of every rank."""
        followers = tuple(follower.configured(**values) for follower in self.followers)
        return replace(self, config={**self.config, **values}, followers=followers)

    def with_models(self, paths: Mapping[str, str]) -> "ChildPlan":
        """Return the same plan with the names of models replaced by the paths where they were found."""
        found: dict[str, Any] = {key: paths[name] for key, name in self.models.items()}
        if further := self.config.get("further_models"):
            found["further_models"] = [{**model, "model": paths[model["model"]]} for model in further]
        return self.configured(**found)

    @property
    def models(self) -> dict[str, str]:
        """The names of models in its configuration, by key."""
        model_names = {key: self.config[key] for key in MODEL_KEYS if self.config.get(key) is not None}
        return {key: name for key, name in model_names.items() if (key, name) != ("speculative_model", MTP)}

    def in_role(self, role: str) -> "ChildPlan":
        """Return the plan of the same worker in another role. Its name stays."""
        followers = tuple(follower.in_role(role) for follower in self.followers)
        return replace(self, role=role, config={**self.config, "role": role}, followers=followers)

    def with_keys(self, secret: str | None) -> "ChildPlan":
        return self.configured(keys=secret)

    def describe(self) -> str:
        """Return one line, and one more for each rank of a worker that has several."""
        rank_lines = [f"{member.name:<12} {member.device:<8} cores {spell(member.cores)}" for member in self.members]
        if self.size == 1:
            return rank_lines[0]
        part = "experts" if self.is_data_parallel else "model"
        here = f", here {spell(member.config['rank'] for member in self.members)}" if self.nodes > 1 else ""
        heading = f"{self.name:<12} {self.size} ranks{here}, each with 1/{self.size} of the {part}"
        return "\n".join([heading, *(f"  {text}" for text in rank_lines)])


def plan_ranks(
    name: str, role: str, placements: Sequence[Placement], config: dict[str, Any], endpoint: str, node: int = 0
) -> ChildPlan:
    """Return the plan of a worker with a rank on each placement, which are those of host `node` if it is on several.
    `config` is what all ranks share; they meet at `endpoint`. If it says that they are data-parallel, each has the
    address of a worker."""
    count, peers = len(placements) * config.get("nnodes", 1), str(config.get("peer_endpoint"))
    is_data_parallel = config.get("data_parallel_size", 1) > 1
    size, number = ("data_parallel_size", "data_parallel_rank") if is_data_parallel else ("ranks", "rank")
    meeting = {size: count, "rank_endpoint": endpoint if count > 1 else None}
    members = [
        ChildPlan(
            rank_name(name, rank), role, place.device, place.cores,
            {
                **config, "name": rank_name(name, rank), "role": role, "device": place.device,
                "cores": list(place.cores), number: rank, **meeting,
                **({"peer_endpoint": rank_address(peers, rank)} if is_data_parallel else {}),
            },
        )
        for rank, place in enumerate(placements, len(placements) * node)
    ]  # fmt: skip
    return replace(members[0], followers=tuple(members[1:]))


def devices_of(plans: Iterable[ChildPlan], machine: HostDevices) -> HeldDevices:
    """Return what other launches should know of the devices of these processes. Cores that only feed a GPU are no
    claim."""
    ranks = [rank for plan in plans if plan.computes for rank in plan.members]
    gpus = (int(rank.device.removeprefix("cuda:")) for rank in ranks if rank.device != CPU)
    return HeldDevices(
        frozenset(core for rank in ranks if rank.device == CPU for core in rank.cores),
        frozenset(map(machine.gpu_name, gpus)),
        frozenset(rank.role for rank in ranks),
    )


def rank_name(worker: str, rank: int) -> str:
    """Return the name of a rank in logs: the driver has the worker's own."""
    return f"{worker}{JOIN}{rank}" if rank else worker


def rank_address(endpoint: str, rank: int) -> str:
    """Return the address at which peers reach a data-parallel rank: a socket file of its own, or the same with a port
    that the system chooses."""
    return f"{endpoint}{JOIN}{rank}" if rank and endpoint.startswith("ipc:") else endpoint


def rank_endpoint(run: str, worker: str) -> str:
    """Return the address at which the ranks of a worker meet, in the launch's run directory."""
    return f"ipc://{run}/{worker.replace(':', '-')}-ranks"
