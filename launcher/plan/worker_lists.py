# SPDX-License-Identifier: Apache-2.0
"""The workers of a launch by kind: those that do the same work, each on its devices."""

from collections.abc import Sequence
from dataclasses import dataclass

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.foundation.held_devices import HeldDevices
from pontil.launcher.host.device_list import DeviceItem, RankDevice
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.stage_list import PHASES
from pontil.launcher.options.worker_roles import TEXT_ROLES
from pontil.launcher.plan.addresses import is_local
from pontil.runtime.foundation.number_ranges import spell
from pontil.runtime.foundation.staged_model import ModelStage


@dataclass(frozen=True, slots=True)
class WorkerList:
    """Workers that are alike, with the devices of each. `name` is theirs without a number; `node` is their stage in a
    model of several, and `model` has the options of a further model of a launch."""

    name: str
    role: str
    items: tuple[DeviceItem, ...]
    node: ModelStage | None = None
    model: LaunchOptions | None = None

    def names(self, first: int = 0) -> tuple[str, ...]:
        """Return the workers' names, numbered from `first` on."""
        return tuple(f"{self.name}:{number}" for number in range(first, first + len(self.items)))


def role_lists(
    options: LaunchOptions, roles: Sequence[str], machine: HostDevices, before: Sequence[DeviceItem] = ()
) -> list[WorkerList]:
    """Return the workers of each role; a role without a list gets one on what suits the machine, and those `before`
    leave."""
    items_by_role: dict[str, tuple[DeviceItem, ...]] = {
        role: items for role in roles if (items := getattr(options, role)) is not None
    }
    taken_items = [*before, *(item for items in items_by_role.values() for item in items)]
    lists: list[WorkerList] = []
    for role in roles:
        items = (
            items_by_role[role]
            if role in items_by_role
            else (default_item(role, taken_items, machine, options.share_devices),)
        )
        lists.append(WorkerList(role, role, items))
        taken_items += items
    return lists


def roles_of(options: LaunchOptions) -> tuple[str, ...]:
    roles: tuple[str, ...] = PHASES if options.role == "all" else (options.role,)
    return (*roles, *(role for role in listed_texts(options) if role not in roles))


def listed_texts(options: LaunchOptions) -> list[str]:
    """Return the roles with a model of their own whose workers were asked for."""
    return [role for role in TEXT_ROLES if getattr(options, role) is not None]


def awaited_phase(options: LaunchOptions, control: str, held_devices: HeldDevices) -> str | None:
    """Return the phase that a launch of one phase leaves to another launch, whose workers are to come to this host: its
    proxy is here, and they are not yet."""
    if options.role not in PHASES or not is_local(control):
        return None
    other_phase = PHASES[1 - PHASES.index(options.role)]
    return None if other_phase in held_devices.roles else other_phase


def default_item(role: str, taken_items: Sequence[DeviceItem], machine: HostDevices, share: bool) -> DeviceItem:
    """Choose a free GPU if there are GPUs, unless the rest of the launch runs on the CPU; else free cores. Where
    devices are shared, the GPU with the fewest workers."""
    if not machine.gpus or (taken_items and not any(item.gpus for item in taken_items)):
        return DeviceItem()
    used_gpus = [*machine.held_gpus, *(gpu for item in taken_items for gpu in item.gpus)]
    gpu = min(range(machine.gpus), key=used_gpus.count)
    if gpu in used_gpus and not share:
        launches = f", and other launches have {spell(machine.held_gpus)}" if machine.held_gpus else ""
        raise OptionError(
            f"No GPU is left for a {role} worker (this machine has {machine.gpus}{launches}): use --role mixed (one "
            f"worker for both phases), --share-devices, or --{role} cpu."
        )
    return DeviceItem((RankDevice(gpu=gpu),))
