# SPDX-License-Identifier: Apache-2.0
"""A launch in virtual time: the real proxy in its event loop, and workers, without a supervisor."""

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal

import tokenizers

from pontil.runtime.config.proxy_config import ProxyConfig
from pontil.runtime.config.worker_config import WorkerConfig, WorkerRole
from pontil.runtime.grammar.grammar import GrammarCompiler
from pontil.runtime.planner.device_profile import DeviceProfile
from pontil.runtime.planner.planned_roles import PlannedRoles
from pontil.runtime.planner.planned_worker import PlannedModel, PlannedPlace, PlannedWorker
from pontil.runtime.planner.shared_cores import OwnCores, SharedCores
from pontil.runtime.planner.step_costs import StepCosts
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.tokenizer.tokenizer import Tokenizer
from pontil.runtime.tokenizer.vocabulary import Vocabulary
from pontil.runtime.wire.simulated.event_loop import LoopProcess
from pontil.runtime.wire.simulated.install import enter
from pontil.runtime.wire.simulated.virtual_time import VirtualWorld

CONTROL, PEERS = "ipc:///plan/control", "ipc:///plan/"
# Messages between processes of one host are late by so many seconds, where they are late.
JITTER = 0.1e-3
# Virtual seconds in which all workers have registered.
WHOLE_WITHIN = 60.0
# Seconds until the proxy hears of a process that died, or began.
NOTICED_AFTER = 1e-3
# Tokens of the tokenizer, all of one letter.
TOKENS = 256

NO_OPTIONS: Mapping[str, Any] = MappingProxyType({})

Disagg = Literal["auto", "always", "never"]


@dataclass(frozen=True, slots=True)
class PlannedTopology:
    """So many workers of each role, and whether prefill and decode are split. `kinds` are the models of the workers, in
    the order of their roles, where a plan has several; else all are of its one."""

    prefill: int
    decode: int
    mixed: int
    disagg: Disagg
    kinds: tuple[PlannedModel, ...] = ()

    @property
    def roles(self) -> dict[WorkerRole, int]:
        return {"prefill": self.prefill, "decode": self.decode, "mixed": self.mixed}

    @property
    def workers(self) -> int:
        return self.prefill + self.decode + self.mixed

    @property
    def places(self) -> list[WorkerRole]:
        """The role of each worker."""
        return [role for role, count in self.roles.items() for _ in range(count)]

    def models(self, usual: PlannedModel) -> tuple[PlannedModel, ...]:
        """Return the model of each worker, which is the `usual` one in a plan of one kind."""
        return self.kinds or (usual,) * self.workers

    @property
    def labels(self) -> list[str]:
        """The role of each worker behind its kind, where there are several."""
        if not self.kinds:
            return list(self.places)
        return [f"{model.kind} {role}" for model, role in zip(self.kinds, self.places, strict=True)]

    @property
    def name(self) -> str:
        return " ".join(f"{count} {label}" for label, count in Counter(self.labels).items())


class QuietWorld(VirtualWorld):
    """A world of which no trace is kept: it is most of the time of a message."""

    def note(self, *what: object) -> None:
        return

    def note_message(self, sender: str, target: str, parts: Sequence[bytes]) -> None:
        return


class PlannedProxy(LoopProcess):
    """The process of the proxy."""

    def __init__(self, world: VirtualWorld, config: ProxyConfig, tokenizer: Tokenizer) -> None:
        super().__init__(world, "proxy")
        self.proxy = self.do(lambda: self.make(config, tokenizer))

    def make(self, config: ProxyConfig, tokenizer: Tokenizer) -> Proxy:
        proxy = Proxy(config, tokenizer)
        proxy.bind()
        proxy.start()
        return proxy


def plain_tokenizer() -> Tokenizer:
    """Return a tokenizer whose tokens are all alike: no text of a plan is read."""
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0}, unk_token="a"))  # noqa: S106
    vocabulary = Vocabulary(lambda: backend, (b"a",) * TOKENS, {}, frozenset(), {}, (), None)
    return Tokenizer(lambda: vocabulary)


def planned_model(profile: DeviceProfile, **machine: Any) -> PlannedModel:
    """Return a model of a profile on a `machine`: the last fields of a PlannedModel."""
    tokenizer, costs = plain_tokenizer(), StepCosts(profile.times, profile.lending)
    return PlannedModel(profile, costs, tokenizer, GrammarCompiler(tokenizer, TOKENS), **machine)


class PlannedSite:
    """The processes of one topology, in a world of their own, whose proxy has these `options`. It is on a host of this
    model, and so are all workers whose kinds the topology does not tell."""

    def __init__(
        self, topology: PlannedTopology, model: PlannedModel, seed: int, options: Mapping[str, Any] = NO_OPTIONS
    ) -> None:
        self.topology, self.model, self.options = topology, model, options
        world = self.world = QuietWorld(seed)
        enter(world)
        world.network.jitter = JITTER
        profiles = [own.profile for _, own in self.members]
        each = [(profile.about.cores, profile.company) for profile in profiles]
        self.cores = SharedCores(world, model.cores, each) if model.cores else OwnCores()
        self.proxy = PlannedProxy(world, self.proxy_config, model.tokenizer)
        self.workers = [
            PlannedWorker(world, config, own, PlannedPlace(number, self.cores))
            for number, (config, own) in enumerate(self.members)
        ]
        self.roles = PlannedRoles(self.proxy, self.proxy.proxy, self.workers, self.tell_table)

    def serve(self, seconds: float) -> None:
        """Spend what work of the proxy takes on the cores."""
        now = self.world.now()
        self.world.spend(self.cores.serve(now, seconds) - now)

    @property
    def proxy_config(self) -> ProxyConfig:
        about = self.model.profile.about
        return ProxyConfig(
            model=about.model, served_model_name=about.model, control=CONTROL, version=about.version, self_test=False,
            disagg=self.topology.disagg, **self.options,
        )  # fmt: skip

    @property
    def members(self) -> Iterator[tuple[WorkerConfig, PlannedModel]]:
        """The configuration and the model of each worker."""
        numbers = Counter[WorkerRole]()
        for role, model in zip(self.topology.places, self.topology.models(self.model), strict=True):
            about, sizes, name = model.profile.about, model.profile.sizes, f"{role}:{numbers[role]}"
            numbers[role] += 1
            config = WorkerConfig(
                name=name, role=role, device=about.device, cores=tuple(range(about.cores)), model=about.model,
                served_model_name=about.model, control=CONTROL, peer_endpoint=f"{PEERS}{name}", version=about.version,
                keep_kv=False, block_size=sizes.block_tokens, max_num_seqs=sizes.seats,
                max_num_batched_tokens=sizes.step_tokens, max_interleaved_tokens=sizes.interleaved_tokens or None,
                speculative_tokens=model.guesses,
            )  # fmt: skip
            yield config, model

    def kill(self, role: str) -> None:
        """Kill a worker of a role. It is back as soon as the profile says that a supervisor has one back."""
        place = next(place for place, one in enumerate(self.workers) if one.role == role and one.alive)
        self.workers[place].kill()
        self.world.after(NOTICED_AFTER, self.tell_table)
        self.world.after(self.workers[place].runner.model.profile.host.back_after, self.begin_again, place)

    def begin_again(self, place: int) -> None:
        before = self.workers[place]
        config, runner = before.loop.sockets.config, before.runner
        self.workers[place] = PlannedWorker(self.world, config, runner.model, runner.place)
        self.world.after(NOTICED_AFTER, self.tell_table)

    def tell_table(self) -> None:
        """Have the proxy hear of processes what a supervisor tells it."""
        rows = [
            {"name": one.name, "role": one.role, "pid": os.getpid() if one.alive else None,
             "state": "READY" if one.alive else "BACKOFF", "device": one.loop.sockets.config.device}
            for one in self.workers
        ]  # fmt: skip
        self.proxy.call(self.proxy.proxy.take_table, rows)

    def begin(self) -> None:
        """Let time pass until the proxy knows all workers."""
        until, known = self.world.time + WHOLE_WITHIN, self.proxy.proxy.registry.workers
        self.world.run(lambda: len(known) == len(self.workers) or self.world.time > until)
        assert len(known) == len(self.workers), "workers of a plan register at once"
        self.tell_table()
        if self.proxy_config.balance == "auto":
            self.roles.begin()

    def close(self) -> None:
        """End all processes in order, so that nothing of this site is left in the next one's way."""
        closing = self.proxy.do(lambda: self.proxy.loop.create_task(self.proxy.proxy.close()))
        self.world.run(closing.done)
        self.proxy.loop.close()
        for worker in [one for one in self.world.processes if isinstance(one, PlannedWorker)]:
            with worker.inside():
                worker.loop.close()
