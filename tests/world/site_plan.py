# SPDX-License-Identifier: Apache-2.0
"""The plan of a launch in the world: how many of each process, and their configurations."""

import hashlib
import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from disks import KV
from receipt_clients import SECRET
from staged_sites import StagedSite, StageWorkers, staged_site

from pontil.launcher.host.devices import Placement
from pontil.launcher.options.worker_roles import EMBED, GENERATING_ROLES, RERANK, TEXT_ROLES
from pontil.launcher.plan.child_plan import ChildPlan, plan_ranks, rank_endpoint, rank_name

# Clients by name, with their keys.
CALLERS = {"ann": "key-of-ann", "bob": "key-of-bob", "cleo": "key-of-cleo"}
# Callers of seeds with tenants alone: hostile clients have not heard of their keys.
MODEST, LIMITED = ("eve", "key-of-eve"), ("dan", "key-of-dan")
VERSION = "0"
# Of so many seeds these have workers of several ranks: those of each prefill and each decode worker.
ROUND = 24
RANKS = {5: (1, 2), 13: (2, 1), 14: (1, 2), 21: (2, 2)}
# Those in which ranks that decode are workers of their own.
DATA_PARALLEL = {14}
# The prefill, decode and mixed workers and proxies of a seed, and those of other seeds of a round: workers that decode
# what they computed, and a proxy whose clients have no other one.
USUAL = (2, 2, 0, 2)
SITES = {
    7: (0, 0, 2, 1), 9: (0, 0, 3, 2), 11: (2, 2, 0, 1), 12: (1, 1, 0, 2), 15: (1, 1, 0, 1), 17: (1, 1, 1, 1),
    20: (0, 0, 2, 1), 23: (1, 2, 0, 1),
}  # fmt: skip
# Seeds of a round with workers that embed texts, and how many.
EMBEDS = {12: 2, 20: 1}
EMBEDDER = "embedder"
# And with workers that score pairs of texts.
RERANKS = {12: 1, 20: 2}
RERANKER = "reranker"
TEXT_MODELS = {EMBED: EMBEDDER, RERANK: RERANKER}
# Seeds of a round whose model has several stages, and which of the sites they have, counted from 1.
STAGES = {15: 1, 23: 2, 7: 3, 19: 4}
# The most requests of such a seed: one is the work of several.
STAGED_REQUESTS = 20
# A resume window that is so short is waited for.
SHORT_WINDOW = 5.0
# Share of seeds with two hosts, and of those whose workers have tiers below a pool that is small.
SECOND_HOST, TIERS = 0.15, 0.2
# Share of seeds with two hosts that have keys, and their addresses.
KEYED, ADDRESSES, CONTROL_PORT = 0.5, ("10.0.0.1", "10.0.0.2"), 7000
# Share of seeds whose workers' memory outlives them.
KEPT_KV = 0.25
# Share of seeds whose change is one with a gate, of those with one host, one stage and no ranks.
GATED = 0.12
# Memory of a worker for streams: for the states of a few runs.
STREAM_MEMORY = 4 << 20
SMALL_POOL, TIER_MEMORY, TIER_DISK = 72, 4 << 10, 1 << 20
# The directories of the adapters with which a launch begins, by their names.
BEGINS_WITH = {"sql": "first", "law": "second"}


@dataclass(frozen=True, slots=True)
class SitePlan:
    """So many processes of each kind, of which some seeds have others where no count is given. Each worker has this
    many KV blocks and seats."""

    prefill: int = -1
    decode: int = -1
    mixed: int = -1
    proxies: int = -1
    embed: int = -1
    rerank: int = -1
    # The number of a site of a model of several stages (staged_sites.py), and 0 for a model of one.
    stages: int = -1
    blocks: int = 192
    seats: int = 8
    requests: int = 50
    faults: int = 4
    # Kinds of faults: all, where none is named.
    kinds: tuple[str, ...] = ()
    # Operators' changes, beside the faults, and those by which all workers take the other role.
    changes: int = 1
    swaps: int = 0
    # Hosts of the processes: the workers of the `far` role are on a second one, if there is one. 0: some seeds have it.
    hosts: int = 0
    far: str = ""
    # Tiers of workers: 0 for none, 1 for memory, 2 for memory and a disk. Less: some seeds have them.
    tiers: int = -1
    # Memory that outlives its worker: 1 for all workers, 0 for none. Less: some seeds have it.
    kept_kv: int = -1
    # Keys between two hosts: 1 with them, 0 without. Less: some seeds have them.
    keys: int = -1
    # Chats whose prompts are to be leased beside their answers.
    kept: int = 0
    # Processes of each worker; None: most seeds have one, some have several, and then one host and no tiers.
    prefill_ranks: int | None = None
    decode_ranks: int | None = None
    # 1 if the ranks that decode are workers of their own, 0 if not. Less: in some seeds they are.
    data_parallel: int = -1
    # 1 if the operators' change is one with a gate, 0 if not. Less: in some seeds it is.
    gates: int = -1
    # Seconds in which a stream can be continued, and those of a worker's start, at least and at most.
    resume_window: float = 60.0
    worker_start: tuple[float, float] = (1.0, 3.0)
    # Kinds of faults that are likely.
    likely: tuple[str, ...] = ()
    # True for clients that are tenants (greedy_tenants.py), and the settings of keys.
    tenants: bool = False
    allowances: tuple[tuple[str, tuple[tuple[str, float | str], ...]], ...] = ()
    # True with a lease whose worker is filled (followed_leases.py).
    follows: bool = False
    # 1 for clients who ask for adapters (adapter_clients.py), 0 without. Less: some seeds have such. The folder of
    # these, and the bytes that a worker has for them.
    adapters: int = -1
    adapter_folder: str = ""
    adapter_memory: int | None = None
    # Most prompt tokens of a step.
    batched_tokens: int = 256

    def drawn(self, chance: random.Random) -> "SitePlan":
        """Return the plan of one seed, with what is left open drawn."""
        hosts, far = 1 + (chance.random() < SECOND_HOST), chance.choice(("prefill", "decode"))
        tiers = chance.choice((1, 2, 2)) if chance.random() < TIERS else 0
        # Drawn behind all of the others, which stay as they are.
        kept = int(chance.random() < KEPT_KV)
        keyed = int(chance.random() < KEYED)
        gated = int(chance.random() < GATED)
        if self.has_ranks:
            return replace(self, hosts=1, tiers=0, kept_kv=0, keys=0, gates=0)
        split = self.prefill > 0 and self.decode > 0
        made = replace(self, hosts=(self.hosts or hosts) if split else 1, far=far)
        keyed = keyed if self.keys < 0 else self.keys
        made = replace(made, keys=keyed if made.hosts > 1 else 0)
        made = replace(made, tiers=tiers if self.tiers < 0 else self.tiers)
        made = replace(made, kept_kv=kept if self.kept_kv < 0 else self.kept_kv)
        may_gate = made.hosts == 1 and made.stages <= 0 and not made.tenants and made.changes > 0
        made = replace(made, gates=int(may_gate) and (gated if self.gates < 0 else self.gates))
        made = replace(made, changes=0) if made.gates else made
        return replace(made, blocks=min(made.blocks, SMALL_POOL)) if made.tiers else made

    def host_of(self, name: str) -> int:
        return int(self.hosts > 1 and name.startswith(self.far))

    def of_seed(self, seed: int) -> "SitePlan":
        """Return the plan of a seed, in which no count of processes is left open."""
        drawn = RANKS.get(seed % ROUND, (1, 1))
        asked = self.prefill_ranks, self.decode_ranks
        ranks = [of or by for of, by in zip(asked, drawn, strict=True)]
        given = self.prefill, self.decode, self.mixed, self.proxies
        site = USUAL if max(given) >= 0 else SITES.get(seed % ROUND, USUAL)
        prefill, decode, mixed, proxies = (of if of >= 0 else by for of, by in zip(given, site, strict=True))
        embed, rerank, stages = (
            of if of >= 0 else 0 if max(given) >= 0 else drawn.get(seed % ROUND, 0)
            for of, drawn in ((self.embed, EMBEDS), (self.rerank, RERANKS), (self.stages, STAGES))
        )
        made = self if not stages else replace(self, requests=min(self.requests, STAGED_REQUESTS))
        if stages:
            # Such a model has one proxy, no ranks, and no models for texts beside it here.
            ranks, proxies, embed, rerank = [1, 1], 1, 0, 0
        data_parallel = int(seed % ROUND in DATA_PARALLEL) if self.data_parallel < 0 else self.data_parallel
        return replace(
            made, prefill=prefill, decode=decode, mixed=mixed, proxies=proxies, embed=embed, rerank=rerank,
            stages=stages, prefill_ranks=ranks[0], decode_ranks=ranks[1], data_parallel=data_parallel,
        )  # fmt: skip

    @property
    def staged(self) -> StagedSite | None:
        return staged_site(self.stages) if self.stages > 0 else None

    def ranks_of(self, worker: str) -> int:
        ranks = {"prefill": self.prefill_ranks, "decode": self.decode_ranks, "mixed": self.decode_ranks}
        return ranks.get(worker.split(":")[0]) or 1

    def later(self, worker: str) -> StageWorkers | None:
        """Return the kind of a worker of a stage behind the first."""
        kinds = () if self.staged is None else self.staged.later
        return next((one for one in kinds if one.stem == worker.split(":")[0]), None)

    def role_of(self, worker: str) -> str:
        later = self.later(worker)
        return worker.split(":")[0] if later is None else later.role

    def asked_as(self, worker: str) -> str:
        """Return the words by which an operator asks for more workers of its kind."""
        later = self.later(worker)
        return worker.split(":")[0] if later is None else later.asked

    def model_of(self, worker: str) -> str:
        return TEXT_MODELS.get(worker.split(":")[0], "tiny")

    def is_data_parallel(self, worker: str) -> bool:
        """Return whether the ranks of a worker have sequences of their own."""
        return self.data_parallel > 0 and worker.startswith(("decode:", "mixed:")) and self.ranks_of(worker) > 1

    @property
    def has_ranks(self) -> bool:
        return max(map(self.ranks_of, self.worker_names)) > 1

    @property
    def kv_heads(self) -> int:
        return max(1 if self.is_data_parallel(name) else self.ranks_of(name) for name in self.worker_names)

    @property
    def registered_names(self) -> list[str]:
        """The names that proxies know."""
        ranks = [
            rank_name(name, rank)
            for name in self.worker_names
            for rank in range(1, self.ranks_of(name))
            if self.is_data_parallel(name)
        ]
        return self.worker_names + ranks

    @property
    def follower_names(self) -> list[str]:
        return [rank_name(name, rank) for name in self.worker_names for rank in range(1, self.ranks_of(name))]

    @property
    def proxy_names(self) -> list[str]:
        return ["proxy"] if self.proxies == 1 else [f"proxy:{number}" for number in range(self.proxies)]

    @property
    def worker_names(self) -> list[str]:
        counts = {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed, EMBED: self.embed}
        counts |= {RERANK: self.rerank}
        counts |= {} if self.staged is None else {one.stem: one.count for one in self.staged.later}
        return [f"{role}:{number}" for role, count in counts.items() for number in range(count)]

    @property
    def process_names(self) -> list[str]:
        return self.worker_names + self.proxy_names + self.follower_names

    @property
    def controls(self) -> list[str]:
        if self.keys > 0:
            return [f"tcp://{ADDRESSES[0]}:{CONTROL_PORT + number}" for number in range(self.proxies)]
        return [f"ipc:///world/control-{number}" for number in range(self.proxies)]

    def peer_endpoint(self, worker: str) -> str:
        return f"tcp://{ADDRESSES[self.host_of(worker)]}:0" if self.keys > 0 else f"ipc:///world/{worker}"

    def child_plans(self, folder: Path) -> list[ChildPlan]:
        controls = self.controls
        digests = [
            [name, hashlib.sha256(key.encode()).hexdigest()] for name, key in (*CALLERS.items(), MODEST, LIMITED)
        ]
        shared: dict[str, Any] = {"shared_folder": str(folder / "proxies")} if self.proxies > 1 else {}
        if self.staged is not None:
            shared |= {"graph": self.staged.graph}
        if self.embed > 0:
            shared |= {"embedding_model": EMBEDDER, "served_embedding_model_name": EMBEDDER}
        if self.rerank > 0:
            shared |= {"reranking_model": RERANKER, "served_reranking_model_name": RERANKER}
        proxies = [
            ChildPlan(name, "proxy", "cpu", (), {
                "host": "127.0.0.1", "port": 80, "model": "tiny", "served_model_name": "tiny", "name": name,
                "control": controls[number], "version": VERSION, "usage_log": str(folder / "usage"),
                "resume_folder": str(folder / "streams"), "resume_window": self.resume_window,
                "response_store": str(folder / "responses"),
                "in_flight_bodies": str(folder / f"bodies-{number}"), "number": number, "proxies": self.proxies,
                "callers": digests, "allowances": self.allowances, "self_test": False,
                "receipt_key": SECRET, **shared, **self.adapter_fields,
            })
            for number, name in enumerate(self.proxy_names)
        ]  # fmt: skip
        return [*proxies, *(self.worker_plan(name, controls, folder) for name in self.worker_names)]

    def worker_plan(self, name: str, controls: list[str], folder: Path) -> ChildPlan:
        role, model = self.role_of(name), self.model_of(name)
        config = {
            "model": model, "served_model_name": model, "control": controls[0], "more_controls": controls[1:],
            "peer_endpoint": self.peer_endpoint(name), "max_num_seqs": self.seats,
            "max_num_batched_tokens": self.batched_tokens, "version": VERSION, "keep_kv": False,
        }  # fmt: skip
        if role in GENERATING_ROLES:
            config |= {"keep_kv": bool(self.kept_kv), **self.tier_fields(folder), **self.adapter_fields}
            config |= {"adapter_memory": self.adapter_memory}
        if self.staged is not None and role not in TEXT_ROLES:
            later = self.later(name)
            config |= {
                "graph": self.staged.graph, "node": self.staged.first if later is None else later.stage,
                "stream_memory": STREAM_MEMORY,
            }  # fmt: skip
        places = [Placement("cpu", (0,))] * self.ranks_of(name)
        config |= {"data_parallel_size": len(places)} if self.is_data_parallel(name) else {}
        return plan_ranks(name, role, places, config, rank_endpoint("/world", name))

    @property
    def adapter_fields(self) -> dict[str, Any]:
        """The adapters with which a launch begins, and the folder of more."""
        if not self.adapter_folder:
            return {}
        pairs = [f"{name}={self.adapter_folder}/{directory}" for name, directory in BEGINS_WITH.items()]
        return {"adapter": pairs, "adapter_directory": [self.adapter_folder]}

    def tier_fields(self, folder: Path) -> dict[str, Any]:
        made: dict[str, Any] = {"kv_tier_memory": TIER_MEMORY} if self.tiers else {}
        return made | ({"kv_tier_disk": str(folder / KV), "kv_tier_disk_size": TIER_DISK} if self.tiers > 1 else {})
