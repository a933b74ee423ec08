# SPDX-License-Identifier: Apache-2.0
"""The launch with `--on ray`, from its options to its exit code."""

import secrets
import sys
from pathlib import Path

import click

from pontil.launcher.cluster.child_launch import ChildLaunch
from pontil.launcher.cluster.cluster_launch import ClusterLaunch
from pontil.launcher.cluster.cluster_plan import ClusterPlan, plan_cluster
from pontil.launcher.cluster.ray_cluster import RayCluster, import_ray
from pontil.launcher.foundation.errors import LaunchError
from pontil.launcher.host.ports import usable_port
from pontil.launcher.keys.client_keys import read_client_keys
from pontil.launcher.keys.key_file import SECRET_BYTES, key_text, read_key_file
from pontil.launcher.logs.console import Console, own_line
from pontil.launcher.logs.non_blocking_writer import open_outlet, plain_notice
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.checks import check_exposure

# Seconds that an ending launch waits for its output to be read.
LAST_WORDS_WITHIN = 2.0
# Ports that are tried for the first of several proxies, until the next ones are free too.
PORT_TRIES = 20


def launch_on_ray(options: LaunchOptions, environment: LaunchEnvironment, dry_run: bool) -> int:
    """Start the proxy here and the workers where Ray places them, and watch both until the launch ends. Raises
    OptionError for what is known to be wrong before, and LaunchError."""
    plan = plan_cluster(options)
    keys = key_file_text(options)
    read_client_keys(options, environment.variables)
    if dry_run:
        show_plan(plan)
        return 0
    cluster = RayCluster(import_ray(), options.ray_address)
    writer = open_outlet(sys.stderr.fileno(), lambda lost: console.formed(own_line(plain_notice(lost))))
    console = Console(writer, options.log_format)
    control = options.control or own_control(cluster.address, options.proxies)

    def start_proxy() -> ChildLaunch:
        return ChildLaunch(plan.proxy_words(control), keys, environment.variables)

    try:
        if keys is None:
            check_exposure(options, control)
        return ClusterLaunch(plan, cluster, control, keys, console, start_proxy).run()
    finally:
        cluster.shutdown()
        writer.finish(LAST_WORDS_WITHIN)


def key_file_text(options: LaunchOptions) -> str | None:
    """Return the keys of the launch: those of its file, or new ones for its own lifetime; None if it is to have
    none."""
    if options.keys:
        check_exposure(options, options.control or "")
        return key_text(read_key_file(Path(options.keys)))
    return None if options.insecure else key_text(secrets.token_hex(SECRET_BYTES))


def own_control(address: str, proxies: int) -> str:
    """Return an endpoint with a free port at this host's address in the cluster, after which the ports of further
    proxies are free."""
    host = f"[{address}]" if ":" in address else address
    for tries_left in reversed(range(PORT_TRIES)):
        port = usable_port("--control", address, 0)
        try:
            for number in range(1, proxies):
                usable_port("--control", address, port + number)
        except LaunchError:
            if not tries_left:
                raise
        else:
            break
    return f"tcp://{host}:{port}"


def show_plan(plan: ClusterPlan) -> None:
    click.echo("proxy        here")
    for worker in plan.workers:
        click.echo(worker.describe())
