# SPDX-License-Identifier: Apache-2.0
"""Checks of combinations of options, before anything is planned. They raise OptionError."""

from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import CPU
from pontil.launcher.options.options import NONE, LaunchOptions
from pontil.launcher.options.parsers import host_of
from pontil.launcher.options.worker_roles import GENERATING_ROLES, LISTED_ROLES, NODE, TEXT_ROLES
from pontil.launcher.plan.addresses import is_own
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.runtime.config.worker_config import FAST
from pontil.runtime.foundation.connectors import AUTO, CONNECTORS, missing_package
from pontil.runtime.foundation.staged_model import StagedModel
from pontil.runtime.planner.device_profile import MOST_BYTES, ProfileError, read_profile

# Workers send heartbeats twice a second, and renew a lease in thirds of it: with shorter values a busy worker would be
# taken for a dead one.
SHORTEST_TTL = SHORTEST_LEASE = 2.0
SHORTEST_LINK_TIMEOUT = 1.0
MOST_PROXIES = 16
# The package of the extra `otel` that depends on the others.
OTLP_PACKAGE = "opentelemetry.exporter.otlp.proto.http"


def check_lists(options: LaunchOptions) -> None:
    meant = {"all": ("prefill", "decode", *TEXT_ROLES), "mixed": ("mixed", *TEXT_ROLES), "proxy": ()}.get(
        options.role, (options.role,)
    )
    for name in LISTED_ROLES:
        if getattr(options, name) is not None and name not in meant:
            raise OptionError(f"--{name} has no meaning with --role {options.role}: remove one of the two.")


def check_join(options: LaunchOptions) -> None:
    if options.role in ("all", "proxy") and options.join:
        raise OptionError(f"--join starts workers for a proxy that runs already: not with --role {options.role}.")
    if options.role in ("prefill", "decode", *TEXT_ROLES, NODE) and not options.join and options.http is None:
        raise OptionError(f"--role {options.role} starts workers only: name the proxy's --control with --join.")
    if options.join and options.usage_log:
        raise OptionError("--usage-log is kept by the proxy, and none is started here: give it where the proxy starts.")
    if options.join and options.response_store:
        raise OptionError("--response-store is the proxy's, and none is started here: give it where the proxy starts.")
    if options.join and options.receipt_key:
        raise OptionError("--receipt-key is the proxy's, and none is started here: give it where the proxy starts.")
    if options.join and (options.api_keys or options.admin_key):
        raise OptionError("--api-keys and --admin-key are the proxy's, and --join starts none: give them where it is.")
    if options.join and options.control:
        raise OptionError("--control is the endpoint of a proxy started here and --join of one elsewhere: give one.")


def check_own_endpoint(options: LaunchOptions, graph: StagedModel | None) -> None:
    """Check that workers with an endpoint of their own are of one role, and in no other system."""
    if options.http is None:
        return
    if options.role not in ("prefill", "decode"):
        raise OptionError(
            f"--http is for workers that another router drives, with --role prefill or decode, not {options.role}: "
            "use --port."
        )
    if options.join:
        raise OptionError("--http starts a proxy for these workers alone, and --join has them join another: give one.")
    if graph is not None:
        raise OptionError(
            f"--http is for models of one stage, and {options.model_name} has several: leave it out and use --port."
        )


def check_profile(options: LaunchOptions) -> None:
    """Check the file of measured times by which the proxy predicts, and that roles can follow the load."""
    if options.balance == "auto" and options.disagg == "never":
        raise OptionError("--balance auto moves workers between prefill and decode, and --disagg never has no such.")
    if options.profile is None:
        return
    try:
        with Path(options.profile).open("rb") as opened:
            read_profile(opened.read(MOST_BYTES + 1))
    except OSError as error:
        raise OptionError(f"--profile {options.profile} cannot be read: {error.strerror}.") from None
    except ProfileError as error:
        raise OptionError(f"--profile {options.profile}: {error}.") from None


def check_proxies(options: LaunchOptions, graph: StagedModel | None, controls: Sequence[str]) -> None:
    if len(controls) > 1 and graph is not None:
        raise OptionError(
            f"{options.model_name} has several stages, which one proxy conducts: leave out --proxies, and name one "
            "endpoint with --join."
        )
    if options.join and options.proxies > 1 and options.proxies != len(controls):
        raise OptionError(
            f"--join names {len(controls)} endpoints and --proxies says {options.proxies}: name every proxy's."
        )
    if len(controls) > MOST_PROXIES:
        raise OptionError(f"--join names {len(controls)} proxies, and {MOST_PROXIES} is the most.")


def check_stages(options: LaunchOptions, graph: StagedModel | None) -> None:
    """Check the options about stages, of which only a model of several has any."""
    flags = {"--placement": options.placement, "--place": options.place, "--node": options.node}
    flag = next((name for name, value in flags.items() if value), "--role node" if options.role == NODE else None)
    if flag is None:
        return
    if graph is None:
        raise OptionError(
            f"{flag} is for a model of several stages, and {options.model_name} has only one: leave it out."
        )
    if options.role in ("proxy", *TEXT_ROLES):
        raise OptionError(f"{flag} has no meaning with --role {options.role}: remove one of the two.")
    if options.node and not options.join:
        raise OptionError(
            "--node starts one stage's workers for a proxy that runs already: name its --control with --join."
        )
    if options.join and options.placement:
        raise OptionError(
            "--placement places all stages, and --join starts the workers of one: name their devices with --place."
        )
    if options.role == NODE and not options.node:
        raise OptionError(
            f"--role node starts the workers of one stage: name it with --node ({', '.join(graph.node_names)})."
        )


def check_tiers(options: LaunchOptions, workers: Sequence[ChildPlan]) -> None:
    """Check that the workers which answer can have the tiers below their KV cache that were asked for."""
    if options.kv_tier and not options.prefix_caching:
        raise OptionError(
            "--kv-tier keeps prefixes that the KV cache evicts, and --no-prefix-caching keeps none: "
            "leave one of them out."
        )
    for worker in workers:
        if worker.size > 1 and (worker.config["kv_tier_memory"] or worker.config["kv_tier_disk"]):
            raise OptionError(
                f"{worker.name} has {worker.size} devices joined by +, and --kv-tier is for workers of one: use commas."
            )


def check_drafts(options: LaunchOptions, graph: StagedModel | None, workers: Sequence[ChildPlan]) -> None:
    """Check that of a model of several stages one of the workers can have the draft model: one of the stage that
    answers, if that generates."""
    if options.speculative_model is None or graph is None or not workers:
        return
    if all(worker.config["speculative_model"] is None for worker in workers):
        raise OptionError(
            f"--speculative-model guesses for {graph.first} of {graph.name}, and this launch starts no worker of it"
            " that generates tokens: leave it out."
        )


def check_arithmetic(options: LaunchOptions, workers: Sequence[ChildPlan]) -> None:
    """Check that workers that hand over to each other have the same bits."""
    if options.tensor_parallel_arithmetic != FAST:
        return
    first: dict[object, ChildPlan] = {}
    for worker in (plan for plan in workers if plan.role in GENERATING_ROLES):
        peer = first.setdefault(worker.group, worker)
        if worker.divisions != peer.divisions:
            raise OptionError(
                f"With --tensor-parallel-arithmetic {FAST} bits depend on the number of devices of a worker, and "
                f"{peer.name} has {peer.divisions} and {worker.name} {worker.divisions}: give each as many, or leave "
                "it out."
            )


def check_experts(options: LaunchOptions, workers: Sequence[ChildPlan]) -> None:
    """Check that there is somewhere to send rows to, where this launch starts workers."""
    if options.expert_parallel and workers and all(worker.size == 1 for worker in workers):
        raise OptionError(
            "--expert-parallel shares out experts to the devices of a worker, and each of these has one: join devices "
            "with +, or leave it out."
        )


def check_data_parallel(options: LaunchOptions, graph: StagedModel | None, workers: Sequence[ChildPlan]) -> None:
    """Check that there are workers whose devices can have sequences of their own, where this launch starts workers."""
    flag = f"--data-parallel-attention {options.data_parallel_attention}"
    if options.data_parallel_attention == NONE or not workers:
        return
    if graph is not None:
        raise OptionError(f"{flag} is for models of one stage, and {options.model_name} has several: leave it out.")
    groups = [worker for worker in workers if worker.is_data_parallel]
    if not groups and options.role in ("all", "mixed", options.data_parallel_attention):
        raise OptionError(
            f"{flag} gives each device of a worker its own sequences, and each of these workers has one: join devices "
            "with +, or leave it out."
        )
    on_gpus = next((worker for worker in groups if any(member.device != CPU for member in worker.members)), None)
    if on_gpus is not None:
        raise OptionError(
            f"{flag} is for workers on CPUs in this version, and {on_gpus.name} has GPUs: leave it out, or use "
            "--expert-parallel."
        )


def check_deadlines(options: LaunchOptions) -> None:
    """Check that a deadline that includes another one is the longer of the two."""
    for name, value, least in (
        ("worker-ttl", options.worker_ttl, SHORTEST_TTL),
        ("kv-lease", options.kv_lease, SHORTEST_LEASE),
        ("link-timeout", options.link_timeout, SHORTEST_LINK_TIMEOUT),
    ):
        if value < least:
            raise OptionError(f"--{name} is {value:g} s: workers need at least {least:g} s to say that they live.")
    if options.kv_lease <= options.kv_stall_timeout:
        raise OptionError(
            f"--kv-lease is {options.kv_lease:g} s and --kv-stall-timeout {options.kv_stall_timeout:g} s: the blocks "
            "of a pull that stalls would be gone before that is noticed. Give a longer lease."
        )
    if options.nnodes > 1 and options.rendezvous_timeout >= options.start_timeout:
        raise OptionError(
            f"--rendezvous-timeout is {options.rendezvous_timeout:g} s, and a start has {options.start_timeout:g} s in "
            "all: raise --start-timeout too."
        )
    for name, value in (("kv-lease", options.kv_lease), ("first-byte-timeout", options.first_byte_timeout)):
        if value > options.kv_transfer_timeout:
            raise OptionError(
                f"--{name} is {value:g} s, and a transfer is given up after {options.kv_transfer_timeout:g} s: "
                "raise --kv-transfer-timeout too."
            )


def check_usage_log(options: LaunchOptions) -> None:
    if options.usage_log_days is not None and not options.usage_log and not options.join:
        raise OptionError("--usage-log-days says how long a usage log keeps requests: name it as --usage-log FILE.")


def check_tracing(options: LaunchOptions) -> None:
    """Check that traces are exported where there is a proxy, and that what exports them is installed."""
    if options.otlp_traces_endpoint is None:
        if options.otlp_headers:
            raise OptionError("--otlp-headers is for a collector, and none is named: give --otlp-traces-endpoint too.")
        return
    if options.join:
        raise OptionError(
            "--otlp-traces-endpoint is the proxy's, which exports for its workers too, and none is started here: give "
            "it where the proxy starts."
        )
    if not is_installed(OTLP_PACKAGE):
        raise OptionError(
            "--otlp-traces-endpoint needs OpenTelemetry's SDK and exporter, which are not installed: run "
            "`pip install pontil[otel]`."
        )


def is_installed(package: str) -> bool:
    """Return whether a package can be imported. To look for one with dots in its name imports its parents."""
    with suppress(ModuleNotFoundError):
        return find_spec(package) is not None
    return False


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


def check_connector(options: LaunchOptions, control: str) -> None:
    """Refuse a connector that cannot be used here, or that would carry in the clear what the keys protect."""
    if options.kv_connector == AUTO or options.role == "proxy":
        return
    row, host = CONNECTORS[options.kv_connector], host_of(control)
    missing = missing_package(row)
    if missing is not None:
        raise OptionError(f"--kv-connector: {missing}")
    if not row.encrypts and options.keys and host is not None and not is_own(host):
        raise OptionError(
            f"--kv-connector {row.name} does not encrypt what --keys protects: leave it out, or give --insecure "
            "instead of --keys if everyone on that network may read and change all memory of the workers."
        )
