# SPDX-License-Identifier: Apache-2.0
"""The plan of a rollout: an operator's request becomes the steps of a change, or a sentence that explains the
refusal."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from pontil.launcher.child.child_state import DrainState
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.worker_roles import EMBED, GENERATING_ROLES, LISTED_ROLES, NODE, RERANK
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.supervisor.rollouts.rollout import Rollout
from pontil.launcher.supervisor.rollouts.rollout_step import RolloutGoal, RolloutLimits, RolloutStep, WorkerSnapshot
from pontil.launcher.supervisor.rollouts.scale_up import another, kind_named

ALL = "all"
# Aims of workers that serve afterwards.
COMING = (RolloutGoal.WORKING, RolloutGoal.RENEWED, RolloutGoal.THERE)
# Workers that keep their role, and why.
SINGLE_MINDED = {
    EMBED: "embeds texts by a model of its own",
    RERANK: "scores texts by a model of its own",
    NODE: "computes a stage without tokens",
}


@dataclass(frozen=True, slots=True)
class LaunchSnapshot:
    """The state of a launch from which a change is planned. `shares`: devices may be shared. Where `proxies` run here
    too, these are all of their workers. Where the memory of models is limited, there is room for `most_workers` of
    each, by group. New workers are counted from the `first_number` on."""

    workers: Sequence[tuple[ChildPlan, WorkerSnapshot]]
    machine: HostDevices
    limits: RolloutLimits
    shares: bool = False
    proxies: Sequence[str] = ()
    most_workers: Mapping[str, int] = field(default_factory=dict)
    first_number: int = 0

    @property
    def places(self) -> dict[str, WorkerSnapshot]:
        return {place.name: place for _, place in self.workers}

    @property
    def children(self) -> dict[str, str]:
        """The child that each worker is, or is a rank of, by its name."""
        return {worker.name: plan.name for plan, _ in self.workers for worker in plan.workers}

    @property
    def names(self) -> str:
        return ", ".join(self.places) or "none"


def planned(request: Mapping[str, Any], snapshot: LaunchSnapshot) -> Rollout:
    """Return the change that a request from the control socket asks for. Raises OptionError and LaunchError."""
    command = request.get("command")
    steps = {
        "drain": lambda: [RolloutStep(RolloutGoal.DRAINED, name) for name in chosen(request, snapshot)],
        "undrain": lambda: [RolloutStep(RolloutGoal.WORKING, name) for name in chosen(request, snapshot)],
        "restart": lambda: restarts(request, snapshot),
        "role": lambda: roles(request, snapshot),
        "scale": lambda: scaled(request, snapshot),
    }.get(str(command), lambda: unknown(command))()
    limit = request.get("drain_timeout")
    drain = snapshot.limits.drain if limit is None else seconds(limit)
    minimum = 0 if request.get("force") or not snapshot.proxies else 1
    gate = request.get("gate")
    if gate is not None:
        steps = gated(steps, snapshot)
    limits = RolloutLimits(drain, snapshot.limits.start, None if gate is None else seconds(gate, "--gate-timeout"))
    change = Rollout(tuple(steps), minimum, limits)
    check_service(change, snapshot)
    return change


def unknown(command: object) -> list[RolloutStep]:
    raise OptionError(f"This launcher has no command {command!r}: use the same version of pontil for both.")


def seconds(value: Any, flag: str = "--drain-timeout") -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 3600:
        raise OptionError(f"{flag} must be a number of seconds from 0 to 3600, not {value!r}.")
    return float(value)


def gated(steps: Sequence[RolloutStep], snapshot: LaunchSnapshot) -> list[RolloutStep]:
    """Return the steps with a gate before each worker that comes to serve. Only one that generates has answers to
    compare."""
    roles = {plan.name: plan.role for plan, _ in snapshot.workers}
    generating = [step for step in steps if (step.role or roles.get(step.name)) in GENERATING_ROLES]
    coming = [step for step in generating if step.aim in COMING and not step.rests]
    if not coming:
        raise OptionError("No worker that generates comes to serve by this change: leave --gate out.")
    return [replace(step, gated=step in coming) for step in steps]


def chosen(request: Mapping[str, Any], snapshot: LaunchSnapshot) -> list[str]:
    """Return the named workers, each once, in the order named. Data-parallel ranks change together."""
    names, children = request.get("names"), snapshot.children
    if not isinstance(names, list) or not names:
        raise OptionError(f"Name a worker: this launch has {snapshot.names}.")
    for name in names:
        if not isinstance(name, str) or name not in children:
            raise OptionError(f"There is no worker {name!r}: this launch has {snapshot.names}.")
    return list(dict.fromkeys(children[name] for name in names))


def restarts(request: Mapping[str, Any], snapshot: LaunchSnapshot) -> list[RolloutStep]:
    """Return the steps that restart workers, or proxies, one after the other. With all, drained workers stay drained;
    named ones are put back into service."""
    if request.get("proxies"):
        return proxy_restarts(snapshot, is_forced=bool(request.get("force")))
    if request.get(ALL):
        return [
            RolloutStep(RolloutGoal.RENEWED, name, rests=place.drain_state is not DrainState.WORKING)
            for name, place in snapshot.places.items()
        ]
    return [RolloutStep(RolloutGoal.RENEWED, name) for name in chosen(request, snapshot)]


def proxy_restarts(snapshot: LaunchSnapshot, *, is_forced: bool) -> list[RolloutStep]:
    if not snapshot.proxies:
        raise LaunchError("This launch has no proxy: restart it where it runs.")
    if len(snapshot.proxies) < 2 and not is_forced:
        raise LaunchError("Nobody else would serve meanwhile: launch with --proxies 2, or say --force.")
    return [RolloutStep(RolloutGoal.RELIEVED, name) for name in snapshot.proxies]


def roles(request: Mapping[str, Any], snapshot: LaunchSnapshot) -> list[RolloutStep]:
    """Return the steps that give workers another role. Those that do not generate tokens cannot do anything else."""
    role, names = checked_role(request.get("role"), GENERATING_ROLES), chosen(request, snapshot)
    roles = {plan.name: plan.role for plan, _ in snapshot.workers}
    for name in names:
        if roles[name] in SINGLE_MINDED:
            raise OptionError(f"{name} {SINGLE_MINDED[roles[name]]}: it cannot work as {role}.")
    return [RolloutStep(RolloutGoal.WORKING, name, role) for name in names]


def checked_role(role: Any, known_roles: Sequence[str] = LISTED_ROLES) -> str:
    if not isinstance(role, str) or role not in known_roles:
        raise OptionError(f"A worker's role is one of {', '.join(known_roles)}, not {role!r}.")
    return str(role)


def scaled(request: Mapping[str, Any], snapshot: LaunchSnapshot) -> list[RolloutStep]:
    """Return the steps to the wanted numbers. Removals come first, highest numbers first, so that their devices can be
    used again."""
    counts = request.get("counts")
    if not isinstance(counts, dict) or not counts:
        raise OptionError(
            "Say how many workers there shall be: --prefill, --decode, --mixed, --embed, --rerank or --node STAGE with "
            "a number."
        )
    if not snapshot.workers:
        raise LaunchError("This launch has no workers (--role proxy): start some with launch --role decode --join.")
    plans, first = [plan for plan, _ in snapshot.workers], snapshot.first_number
    targets = {str(name): (kind_named(name, plans), whole(str(name), count)) for name, count in counts.items()}
    leaving: list[ChildPlan] = []
    coming: list[ChildPlan] = []
    for kind, count in targets.values():
        has = sorted((plan for plan in plans if kind.covers(plan)), key=number_of)
        leaving += has[count:][::-1]
    for name, (kind, count) in targets.items():
        for _ in range(count - sum(map(kind.covers, plans))):
            staying = [plan for plan in plans if plan not in leaving]
            there, machine = staying + coming, snapshot.machine
            coming.append(another(name, there, machine, share=snapshot.shares, known=plans, first_number=first))
            check_room([*staying, *coming], snapshot.most_workers)
    removals = [RolloutStep(RolloutGoal.GONE, plan.name) for plan in leaving]
    return removals + [RolloutStep(RolloutGoal.THERE, plan.name, plan.role, plan) for plan in coming]


def is_counted(plan: ChildPlan, most_workers: Mapping[str, int]) -> bool:
    """Return whether a worker is one of those that the memory of models has room for."""
    return plan.group in most_workers and plan.role in GENERATING_ROLES


def check_room(workers: Sequence[ChildPlan], most_workers: Mapping[str, int]) -> None:
    """Refuse the last of these workers if the memory of models has no room for it. Raises LaunchError."""
    last = workers[-1]
    count = sum(plan.group == last.group and is_counted(plan, most_workers) for plan in workers)
    if is_counted(last, most_workers) and count > most_workers[last.group]:
        raise LaunchError(
            f"There is no room for {last.name} in --model-memory, even while all other models sleep: launch with more "
            "of it, or with a smaller --kv-cache-memory."
        )


def whole(name: str, count: Any) -> int:
    if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= 1024:
        flag = f"--{name}" if name in LISTED_ROLES else f"--node {name}"
        raise OptionError(f"{flag} must be a whole number of workers from 0 to 1024, not {count!r}.")
    return count


def number_of(plan: ChildPlan) -> tuple[int, str]:
    number = plan.name.rpartition(":")[2]
    return int(number) if number.isdigit() else 0, plan.name


def check_service(change: Rollout, snapshot: LaunchSnapshot) -> None:
    """Refuse, before anything is touched, a change that would leave a model or a stage without a worker to serve it."""
    counted_names = {name for name, place in snapshot.places.items() if place.counts}
    for group in dict.fromkeys(plan.group for plan, _ in snapshot.workers):
        check_model(change, counted_names & {plan.name for plan, _ in snapshot.workers if plan.group == group})


def check_model(change: Rollout, serving: Set[str]) -> None:
    """Do so for the model that these workers serve."""
    ending = {step.name for step in change.steps if step.aim in (RolloutGoal.DRAINED, RolloutGoal.GONE)} & serving
    pausing = {step.name for step in change.steps if step.aim is RolloutGoal.RENEWED} & serving
    if change.minimum and ((ending and ending == serving) or (pausing and len(serving) == 1)):
        raise LaunchError(
            f"Nobody else would serve but {', '.join(sorted(serving))}, and new requests would be refused: start "
            "another worker with `scale` first, or say --force."
        )
