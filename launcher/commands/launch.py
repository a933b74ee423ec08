# SPDX-License-Identifier: Apache-2.0
"""The command `launch`: its flags, its plan, and the supervisor that carries it out."""

import secrets
import shutil
import sys
from collections.abc import Callable
from dataclasses import MISSING, Field, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from pontil.launcher.child.child import child_command
from pontil.launcher.child.fork.fork_server import ForkServer
from pontil.launcher.child.health import HealthLimits
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.commands.stage_lines import drawing, stage_lines
from pontil.launcher.commands.worker_memory import memory_lines
from pontil.launcher.control.local_proxy import at_home, open_directory
from pontil.launcher.control.run_directory import RunDirectory
from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.host.devices import HostDevices, find_machine
from pontil.launcher.host.disk_room import check_folder
from pontil.launcher.host.gpus import TOOL
from pontil.launcher.host.interfaces import collective_variables, interface_towards
from pontil.launcher.host.notify import Notifier
from pontil.launcher.host.ports import usable_port
from pontil.launcher.keys.client_keys import read_client_keys
from pontil.launcher.keys.key_file import read_key_file
from pontil.launcher.keys.receipt_key import receipt_seed
from pontil.launcher.keys.trace_headers import read_trace_headers
from pontil.launcher.logs.console import Console, own_line
from pontil.launcher.logs.log_files import LogFiles
from pontil.launcher.logs.non_blocking_writer import open_outlet, plain_notice
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.kv_tier_list import disk_path
from pontil.launcher.options.options import OPTIONS, LaunchOptions, flag_name, read_environment, read_options
from pontil.launcher.options.parsers import WILDCARDS, host_of, model_names
from pontil.launcher.plan.addresses import controls_of
from pontil.launcher.plan.child_plan import devices_of
from pontil.launcher.plan.node_checks import network_lines
from pontil.launcher.plan.topology import Topology, plan
from pontil.launcher.supervisor.chaos import ChaosTerms
from pontil.launcher.supervisor.reload import Reloader
from pontil.launcher.supervisor.restart_policy import RestartPolicy
from pontil.launcher.supervisor.supervisor import Orders, Supervisor
from pontil.runtime.foundation.entry_points import entry_point, missing

# Seconds that an ending launch waits for its output to be read.
LAST_WORDS_WITHIN = 2.0


class LaunchCommand(click.Command):
    """A command that shows its many options under the headings they were declared with."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {option.name: option.metadata["section"] for option in OPTIONS}
        for section, group in groupby(self.get_params(context), lambda param: sections.get(str(param.name), "Other")):
            with formatter.section(section):
                formatter.write_dl([record for param in group if (record := param.get_help_record(context))])


def launch_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add one click option per field of LaunchOptions. Values stay text here: the field's reader checks them."""
    for option in reversed(OPTIONS):
        command = click_option(option)(command)
    return command


def click_option(option: Field[Any]) -> Callable[..., Any]:
    metadata, default = option.metadata, option.default
    if isinstance(default, bool):
        name = flag_name(option)
        names = f"--{name}/--no-{name}" if default else f"--{name}"
        return click.option(names, is_flag=True, default=None, help=metadata["help"])
    shown_default = ",".join(default) if isinstance(default, tuple) else default
    default_text = (
        ""
        if default in (None, MISSING, ())
        else f" [default: {default:g}]"
        if isinstance(default, float)
        else (f" [default: {shown_default}]")
    )
    # The flag of a list may be repeated.
    callback = listed if metadata["read"] is model_names else joined
    list_arguments: dict[str, Any] = {"multiple": True, "callback": callback} if isinstance(default, tuple) else {}
    return click.option(
        f"--{flag_name(option)}", metavar=metadata["metavar"], help=metadata["help"] + default_text, **list_arguments
    )


def joined(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> str | None:
    return ",".join(values) if values else None


def listed(context: click.Context, option: click.Parameter, values: tuple[str, ...]) -> str | list[str] | None:
    """Return values that may have commas."""
    return list(values) if len(values) > 1 else next(iter(values), None)


config_flag = click.option(
    "--config",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="TOML file with the names above. Variables like PONTIL_MAX_NUM_SEQS win over it, and flags over both.",
)


@click.command(cls=LaunchCommand, short_help="Start the proxy and its workers, watch them, and stop them again.")
@launch_flags
@config_flag
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing.")
def launch(config: Path | None, dry_run: bool, **given: Any) -> int:
    """Start the proxy and its workers here, watch them, and stop them again.

    \b
      launch                               a prefill and a decode worker on what this machine has
      launch --role mixed                  one worker that does both
      launch --prefill 0,1 --decode 2,3    four single-GPU workers
      launch --prefill cpu:0-3 --decode cpu:4-7

    One part of it, to be started in any order: --role proxy, --role prefill, --role decode. With --on ray a Ray cluster
    places the workers.

    Ctrl-C ends at once; SIGTERM first lets requests in flight finish.
    """
    launch_environment = read_environment()

    def read() -> LaunchOptions:
        launch_options = read_options(given, config or launch_environment.config_file, launch_environment.variables)
        return at_home(launch_options, launch_environment.run_base)

    options = read()
    check_rooms(options)
    launch_environment = towards_other_nodes(launch_environment, options)
    if options.on == "ray":
        launch_on_ray: Callable[[LaunchOptions, LaunchEnvironment, bool], int] = entry_point("ray")
        return launch_on_ray(options, launch_environment, dry_run)
    secret = read_key_file(Path(options.keys)) if options.keys else None
    clients = read_client_keys(options, launch_environment.variables)
    trace_headers = read_trace_headers(options, launch_environment.variables)
    directory = RunDirectory(launch_environment.run_base)
    machine = find_machine(launch_environment.visible_gpus)

    def planned(options: LaunchOptions, machine: HostDevices) -> Topology:
        return plan(options, machine, directory.path, launch_environment.cache_directory)

    if dry_run:
        with directory.others() as held_devices:
            show_plan(planned(options, replace(machine, held=held_devices)))
        return 0
    alone = planned(options, machine)
    check_alone(options, alone)
    signing_key = receipt_seed(options.receipt_key, launch_environment.cache_directory, is_needed=alone.has_proxy)
    final_options = choose_ports(options)

    def orders_on(machine: HostDevices) -> Orders:
        topology = planned(final_options, machine).with_keys(secret).with_clients(clients.config)
        topology = topology.with_trace_headers(trace_headers).with_signing_keys(secrets.token_hex(32), signing_key)
        return replace(
            orders_of(final_options, topology, launch_environment),
            machine=machine,
            shares_devices=topology.shares,
            reloader=Reloader(final_options, read, launch_environment.variables),
        )

    def begin() -> tuple[Orders, list[str]]:
        messages = open_directory(alone, directory, final_options.role)
        orders, device_messages = take_devices(directory, machine, orders_on)
        return orders, [*stage_lines(orders.topology), *network_lines(options), *messages, *device_messages]

    return supervise(final_options, begin, directory, Notifier(launch_environment.variables))


def towards_other_nodes(launch_environment: LaunchEnvironment, options: LaunchOptions) -> LaunchEnvironment:
    """Return the environment with which the ranks of this host use the network of those on others, if there are any."""
    if options.master_addr is None:
        return launch_environment
    interface = interface_towards(str(host_of(options.master_addr)), "--master-addr")
    return launch_environment.with_defaults(collective_variables(interface))


def check_rooms(options: LaunchOptions) -> None:
    """Raise OptionError for options that need a room which is left out of this installation."""
    for name, is_needed in (("ray", options.on == "ray"), ("disturbances", options.allow_chaos)):
        if is_needed and (lack := missing(name)) is not None:
            raise OptionError(f"{lack}.")


def take_devices(
    directory: RunDirectory, machine: HostDevices, orders_on: Callable[[HostDevices], Orders]
) -> tuple[Orders, list[str]]:
    """Return the orders for what other launches leave of the machine, and messages for the log; state for others what
    this launch takes. Raises LaunchError if they leave too little."""
    with directory.others() as held_devices:
        try:
            orders = orders_on(replace(machine, held=held_devices))
        except OptionError as error:
            # The options were found good for the machine alone: another time they may be carried out.
            raise LaunchError(error.message) from error
        own_devices = devices_of(orders.topology.children, machine)
        messages = directory.hold(own_devices)
    if shared_devices := str(own_devices.shared_with(held_devices)):
        messages.append(f"another launch computes on {shared_devices} too: each is slower while the other computes")
    return orders, messages + [
        f"{file} cannot be read: its launch may be on the same devices" for file in sorted(held_devices.unread)
    ]


def check_alone(options: LaunchOptions, topology: Topology) -> None:
    """Raise OptionError unless the disk has room for what all workers here keep on it, and for held workers without
    which nobody would serve."""
    if options.hold and topology.has_proxy:
        raise OptionError("--hold is for workers that join a proxy which serves: name it with --join.")
    configs = [child.config for child in topology.children if child.config.get("kv_tier_disk")]
    if configs:
        check_folder(
            "--kv-tier", Path(configs[0]["kv_tier_disk"]), sum(config["kv_tier_disk_size"] for config in configs)
        )


def supervise(
    options: LaunchOptions, begin: Callable[[], tuple[Orders, list[str]]], directory: RunDirectory, notifier: Notifier
) -> int:
    """Run the supervisor until the launch ends; the end is logged too. `begin` takes the launch's place on this host,
    and returns its orders and messages for the log. Raises LaunchError."""
    files = None if options.log_dir is None else LogFiles(Path(options.log_dir), options.log_size, options.log_files)
    if files is not None:
        files.open()
    writer = open_outlet(sys.stderr.fileno(), lambda lost: console.formed(own_line(plain_notice(lost))))
    console = Console(writer, options.log_format, files)
    try:
        orders, messages = begin()
        for line in messages:
            console.line(line)
        code = Supervisor(orders, console, directory, notifier).run()
        writer.finish(LAST_WORDS_WITHIN)
        return code
    except LaunchError as error:
        console.failed(error.message)
        if not writer.finish(LAST_WORDS_WITHIN) or options.log_format == "json":
            return error.exit_code
        raise
    finally:
        directory.remove()
        if files is not None:
            files.close()


def choose_ports(options: LaunchOptions) -> LaunchOptions:
    """Return the options with definite ports, each tried by binding. A group that joins a proxy listens on none."""
    if options.join:
        return options
    for control in controls_of(options.control or "", options.proxies) if options.control else ():
        host, _, port = control.removeprefix("tcp://").rpartition(":")
        if not control.startswith("tcp://"):
            continue
        if int(port) == options.port and options.host in (host.strip("[]"), *WILDCARDS):
            raise OptionError(f"--control and --port are both {port}: choose another port for one of them.")
        usable_port("--control", host.strip("[]"), int(port))
    return replace(options, port=usable_port("--port", options.host, options.port))


def orders_of(options: LaunchOptions, topology: Topology, launch_environment: LaunchEnvironment) -> Orders:
    policy = RestartPolicy(
        options.restart_attempts, options.restart_window, options.restart_delay, options.restart_max_delay
    )
    limits = HealthLimits(options.start_timeout, busy=options.busy_timeout, stuck_step=options.busy_timeout)
    gpus = any(child.device.startswith("cuda") for child in topology.children)
    by_exec, server = ExecStarter(child_command(), launch_environment.for_child), (*child_command()[:-1], "fork-server")
    return Orders(
        topology,
        ForkServer(server, by_exec) if any(child.computes for child in topology.children) else by_exec,
        options.drain_timeout,
        policy,
        limits,
        options.self_test,
        shutil.which(TOOL) if gpus else None,
        chaos=chaos_terms(options, limits, policy) if options.allow_chaos else None,
        holds=options.hold,
        address=(options.host, options.port) if any(child.is_proxy for child in topology.children) else None,
    )


def chaos_terms(options: LaunchOptions, limits: HealthLimits, policy: RestartPolicy) -> ChaosTerms:
    """Return the facts for `pontil chaos`, with the folders that the operator has named. The run directory is none of
    them: other programs of the user write beside it."""
    files = [Path(path).absolute().parent for path in (options.usage_log, options.response_store) if path is not None]
    folders = [Path(path).absolute() for path in (disk_path(options.kv_tier), options.log_dir) if path is not None]
    usage_log = None if options.usage_log is None else str(Path(options.usage_log).absolute())
    all_folders = tuple(dict.fromkeys(map(str, files + folders)))
    return ChaosTerms(limits.silence, policy.attempts, policy.window, usage_log, all_folders)


def show_plan(topology: Topology) -> None:
    for child in topology.children:
        click.echo(child.describe())
    for line in drawing(topology):
        click.echo(f"stage        {line}")
    for line in stage_lines(topology):
        click.echo(f"placed       {line}")
    for model in topology.prepare.config["models"]:
        click.echo(f"model        {model}")
    for control in topology.controls:
        click.echo(f"control      {control}")
    if topology.url:
        click.echo(f"clients      {topology.url}")
    for line in memory_lines(topology):
        click.echo(f"memory       {line}")
