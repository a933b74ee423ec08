# SPDX-License-Identifier: Apache-2.0
"""The plan: which processes a launch runs, where, and with which configuration. Nothing here has side effects."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pontil.launcher.config.addresses import check_endpoints, is_own, url_host
from pontil.launcher.config.child_plan import WORKER_ROLES, ChildPlan
from pontil.launcher.config.options import LaunchOptions, served_name
from pontil.launcher.config.parsers import host_of
from pontil.launcher.config.worker_plan import plan_demand, plan_workers
from pontil.launcher.errors import OptionError
from pontil.launcher.host.devices import CPU, HostDevices
from pontil.launcher.version import VERSION

# Workers send heartbeats twice a second, and renew a lease in thirds of it: with shorter values a busy worker would be
# taken for a dead one.
SHORTEST_TTL = SHORTEST_LEASE = 2.0


@dataclass(frozen=True, slots=True)
class Topology:
    """Every process of one launch: `prepare` runs first, alone, and finds the model; then the children start. `served`
    is the model name that clients use."""

    prepare: ChildPlan
    children: tuple[ChildPlan, ...]
    control: str
    url: str | None
    served: str = ""

    def with_model(self, path: str) -> "Topology":
        """Return the same plan with the model's name replaced by the path where it was found."""
        return replace(self, children=tuple(child.configured(model=path) for child in self.children))

    def with_keys(self, secret: str | None) -> "Topology":
        """Return the same plan with the keys that protect its network, if it has any. The child that finds the model
        needs none."""
        return replace(self, children=tuple(child.with_keys(secret) for child in self.children))

    def with_clients(self, keys: Mapping[str, Any]) -> "Topology":
        """Return the same plan with the digests of the API keys that clients must send; only the proxy gets them."""
        children = (one.configured(**keys) if one.is_proxy else one for one in self.children)
        return replace(self, children=tuple(children))

    @property
    def asks_for_keys(self) -> bool:
        return any(child.config.get("callers") for child in self.children)


def plan(options: LaunchOptions, machine: HostDevices, run: Path, cache: Path) -> Topology:
    """Plan the whole topology. Raises OptionError for a combination of options that is impossible."""
    check_lists(options)
    check_join(options)
    check_deadlines(options)
    control = options.join or options.control or f"ipc://{run / 'control'}"
    check_exposure(options, control)
    workers = [] if options.role == "proxy" else plan_workers(options, machine, run, control)
    proxies = [] if options.join else [plan_proxy(options, machine, run, control)]
    check_endpoints([control, *(address for worker in workers for address in worker.endpoints)])
    children = tuple(child.configured(cache_dir=str(cache)) for child in proxies + workers)
    search = {
        "model": options.model,
        "cache_dir": str(cache),
        "log_level": options.log_level,
        "demand": plan_demand(options, workers, machine),
    }
    prepare = ChildPlan("prepare", "prepare", CPU, machine.cores, search)
    url = None if options.join else f"http://{url_host(options.host)}:{options.port}"
    return Topology(prepare, children, control, url, served_name(options))


def check_lists(options: LaunchOptions) -> None:
    meant = {"all": ("prefill", "decode"), "proxy": ()}.get(options.role, (options.role,))
    for name in WORKER_ROLES:
        if getattr(options, name) is not None and name not in meant:
            raise OptionError(f"--{name} has no meaning with --role {options.role}: remove one of the two.")


def check_join(options: LaunchOptions) -> None:
    if options.role in ("all", "proxy") and options.join:
        raise OptionError(f"--join starts workers for a proxy that runs already: not with --role {options.role}.")
    if options.role in ("prefill", "decode") and not options.join:
        raise OptionError(f"--role {options.role} starts workers only: name the proxy's --control with --join.")
    if options.join and options.usage_log:
        raise OptionError("--usage-log is kept by the proxy, and none is started here: give it where the proxy starts.")
    if options.join and options.response_store:
        raise OptionError("--response-store is the proxy's, and none is started here: give it where the proxy starts.")
    if options.join and (options.api_keys or options.admin_key):
        raise OptionError("--api-keys and --admin-key are the proxy's, and --join starts none: give them where it is.")
    if options.join and options.control:
        raise OptionError("--control is the endpoint of a proxy started here and --join of one elsewhere: give one.")


def check_deadlines(options: LaunchOptions) -> None:
    """Check that a deadline that includes another one is the longer of the two."""
    for name, value, least in (
        ("worker-ttl", options.worker_ttl, SHORTEST_TTL),
        ("kv-lease", options.kv_lease, SHORTEST_LEASE),
    ):
        if value < least:
            raise OptionError(f"--{name} is {value:g} s: workers need at least {least:g} s to say that they live.")
    if options.kv_lease <= options.kv_stall_timeout:
        raise OptionError(
            f"--kv-lease is {options.kv_lease:g} s and --kv-stall-timeout {options.kv_stall_timeout:g} s: the blocks "
            "of a pull that stalls would be gone before that is noticed. Give a longer lease."
        )
    for name, value in (("kv-lease", options.kv_lease), ("first-byte-timeout", options.first_byte_timeout)):
        if value > options.kv_transfer_timeout:
            raise OptionError(
                f"--{name} is {value:g} s, and a transfer is given up after {options.kv_transfer_timeout:g} s: "
                "raise --kv-transfer-timeout too."
            )


def check_exposure(options: LaunchOptions, control: str) -> None:
    """Refuse unprotected traffic across a network, unless the options ask for it."""
    host = host_of(control)
    if options.keys and options.insecure:
        raise OptionError("--keys protects what --insecure leaves open: give one of the two.")
    if host is not None and not is_own(host) and not options.keys and not options.insecure:
        raise OptionError(
            f"{control} crosses a network: give --keys FILE, the same on every host (`pontil keys new` makes it), or "
            "--insecure if everyone on that network may read and send requests."
        )


def plan_proxy(options: LaunchOptions, machine: HostDevices, run: Path, control: str) -> ChildPlan:
    config = {
        "host": options.host,
        "port": options.port,
        "model": options.model,
        "served_model_name": served_name(options),
        "control": control,
        "version": VERSION,
        "disagg": options.disagg,
        "usage_log": options.usage_log and str(Path(options.usage_log).absolute()),
        "max_attempts": options.max_attempts,
        "first_byte_timeout": options.first_byte_timeout,
        "stream_idle_timeout": options.stream_idle_timeout,
        "prefill_timeout": options.prefill_timeout,
        "worker_ttl": options.worker_ttl,
        "failover_timeout": options.failover_timeout,
        "awaits_self_test": options.self_test,
        "in_flight_bodies": str(run / "in-flight-bodies"),
        "response_store": response_store(options, run),
        "response_store_size": options.response_store_size,
        "response_store_days": options.response_store_days,
        "max_body_bytes": options.max_body_size,
        "allowed_hosts": list(options.allowed_hosts),
        "callers": [],
        "admin": None,
        "allowances": [],
        "fair_by": options.fair_by,
        "share_prefixes": options.share_prefixes,
        "strict_parameters": options.strict_parameters,
        "cors_origins": list(options.cors_origin),
        "tool_call_parser": options.tool_call_parser,
        "reasoning_parser": options.reasoning_parser,
        "log_level": options.log_level,
    }
    return ChildPlan("proxy", "proxy", CPU, machine.cores, config)


def response_store(options: LaunchOptions, run: Path) -> str | None:
    """Return the file in which responses are kept, if any are. One in the run directory goes with the launch."""
    if options.response_store_size == 0:
        return None
    return str(Path(options.response_store).absolute() if options.response_store else run / "responses.db")
