# SPDX-License-Identifier: Apache-2.0
"""The command line. Each command only reads its options and calls the module that does the work."""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import click

from pontil.launcher.child import child_command
from pontil.launcher.console import Console
from pontil.launcher.devices import find_machine
from pontil.launcher.health import HealthLimits
from pontil.launcher.options import LaunchOptions, Surroundings, flag_name, read_options
from pontil.launcher.ports import usable_port
from pontil.launcher.restart import RestartPolicy
from pontil.launcher.run_directory import RunDirectory
from pontil.launcher.supervisor import Orders, Supervisor
from pontil.launcher.topology import Topology, plan
from pontil.launcher.version import VERSION

INTERRUPTED = 130
AUDIT_ATTEMPTS, AUDIT_PAUSE = 5, 0.3
SERVER = "http://127.0.0.1:8000"


class LaunchCommand(click.Command):
    """Shows its many options under the headings they were declared with."""

    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        sections = {each.name: each.metadata["section"] for each in fields(LaunchOptions)}
        for section, group in groupby(self.get_params(context), lambda each: sections.get(str(each.name), "Other")):
            with formatter.section(section):
                formatter.write_dl([record for each in group if (record := each.get_help_record(context))])


def launch_flags(command: Callable[..., Any]) -> Callable[..., Any]:
    """One click option per field of LaunchOptions. Values stay text here: the field's reader checks them."""
    for declared in reversed(fields(LaunchOptions)):
        command = click_option(declared)(command)
    return command


def click_option(declared: Field[Any]) -> Callable[..., Any]:
    metadata, default = declared.metadata, declared.default
    if isinstance(default, bool):
        name = flag_name(declared)
        names = f"--{name}/--no-{name}" if default else f"--{name}"
        return click.option(names, is_flag=True, default=None, help=metadata["help"])
    shown = "" if default in (None, MISSING) else f" [default: {default:g}]" if isinstance(default, float) else (
        f" [default: {default}]"
    )  # fmt: skip
    return click.option(f"--{flag_name(declared)}", metavar=metadata["metavar"], help=metadata["help"] + shown)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
def cli() -> None:
    """pontil serves large language models, with prefill and decode in separate processes.

    `launch` starts everything on this machine; point any OpenAI client at the address it prints.
    """


@cli.command()
def version() -> None:
    """Print the version."""
    click.echo(VERSION)


@cli.command(cls=LaunchCommand, short_help="Start the proxy and its workers, watch them, and stop them again.")
@launch_flags
@click.option("--config", type=click.Path(path_type=Path), metavar="FILE", help="TOML file with the names above.")
@click.option("--dry-run", is_flag=True, help="Print the plan and start nothing.")
def launch(config: Path | None, dry_run: bool, **given: Any) -> int:
    """Start the proxy and its workers here, watch them, and stop them again.

    \b
      launch                               a prefill and a decode worker on what this machine has
      launch --role mixed                  one worker that does both
      launch --prefill 0 --decode 1,2      three single-GPU workers
      launch --prefill cpu:0-3 --decode cpu:4-7

    Ctrl-C ends at once; SIGTERM first lets requests in flight finish.
    """
    surroundings = Surroundings.read()
    options = read_options(given, config)
    directory = RunDirectory(surroundings.run_base)
    machine = find_machine(surroundings.visible_gpus)
    topology = plan(options, machine, directory.path, surroundings.cache_directory)
    if dry_run:
        show_plan(topology)
        return 0
    chosen = choose_ports(options)
    topology = plan(chosen, machine, directory.path, surroundings.cache_directory)
    directory.create()
    return Supervisor(orders_of(chosen, topology, surroundings), Console(sys.stderr), directory).run()


def choose_ports(options: LaunchOptions) -> LaunchOptions:
    """The same options with a definite port, every port having been tried; a group that joins listens on none."""
    if options.join:
        return options
    if options.control and options.control.startswith("tcp://"):
        host, _, port = options.control.removeprefix("tcp://").rpartition(":")
        usable_port("--control", host.strip("[]"), int(port))
    return replace(options, port=usable_port("--port", options.host, options.port))


def orders_of(options: LaunchOptions, topology: Topology, surroundings: Surroundings) -> Orders:
    policy = RestartPolicy(
        options.restart_attempts, options.restart_window, options.restart_delay, options.restart_max_delay
    )
    limits = HealthLimits(start=options.start_timeout)
    return Orders(topology, child_command(), surroundings.for_child, policy, limits, options.drain_timeout)


def show_plan(topology: Topology) -> None:
    for child in topology.children:
        click.echo(child.describe())
    click.echo(f"model        {topology.prepare.config['model']}")
    click.echo(f"control      {topology.control}")
    if topology.url:
        click.echo(f"clients      {topology.url}")


@cli.command(short_help="Talk to a running server.")
@click.argument("question", required=False)
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
@click.option("--model", metavar="NAME", help="The model to talk to (default: the first that is served).")
@click.option("--max-tokens", type=click.IntRange(1), default=512, show_default=True, help="Longest answer.")
@click.option("--temperature", type=click.FloatRange(0, 2), default=0.7, show_default=True, help="0 is greedy.")
def chat(question: str | None, url: str, model: str | None, max_tokens: int, temperature: float) -> None:
    """Talk to a running server from the terminal, or put one QUESTION to it."""
    from pontil.launcher.chat import Chat, converse, first_model

    conversation = Chat(url.rstrip("/"), model or first_model(url), max_tokens, temperature)
    if question is None:
        converse(conversation)
    else:
        conversation.say(question, lambda piece: click.echo(piece, nl=False))
        click.echo()


@cli.command()
@click.option("--url", default=SERVER, show_default=True, help="Address of the server.")
def status(url: str) -> None:
    """Show the processes of a running server."""
    from pontil.launcher.chat import fetch

    for row in fetch(url, "/admin/topology")["processes"]:
        load = ", ".join(f"{count} {what.replace('_', ' ')}" for what, count in row.get("load", {}).items())
        told = row.get("reason", load)
        click.echo(f"{row['name']:<12} {row['state'].lower():<9} {row['device']:<8} pid {row['pid'] or '-':<8} {told}")


@cli.command(short_help="Show the tokens used, by key, model and day.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
def usage(file: Path, as_json: bool) -> None:
    """Show the tokens used, by key, model and day (UTC), from the FILE that was given to launch as --usage-log."""
    from pontil.launcher.roles import read_usage

    rows = read_usage(file)
    if as_json:
        click.echo(json.dumps(rows, indent=2))
        return
    for line in table(rows):
        click.echo(line)


def table(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Rows under their names: texts to the left, numbers to the right."""
    if not rows:
        yield "no requests"
        return
    cells = [[name.replace("_", " ") for name in rows[0]], *([str(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    left = [isinstance(value, str) for value in rows[0].values()]
    for row in cells:
        padded = zip(row, widths, left, strict=True)
        yield "  ".join(cell.ljust(width) if text else cell.rjust(width) for cell, width, text in padded).rstrip()


@cli.command(short_help="Prove that workers, ledger and usage log have equal counts.")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--url", help="A running server, whose ledger is compared too.")
def audit(file: Path, url: str | None) -> int:
    """Compare what the workers counted, what the ledger booked and what the usage log FILE has: exit code 1 when they
    differ."""
    from pontil.launcher.chat import fetch
    from pontil.launcher.roles import audit_usage

    # A running server goes on between its answer and the file's: a difference counts when it stays. There is nothing to
    # wait on: the ledger is asked again. A file alone does not change.
    for _ in range(AUDIT_ATTEMPTS if url else 1):
        findings = audit_usage(file, fetch(url, "/admin/ledger") if url else None)
        if all(equal for equal, _ in findings):
            break
        time.sleep(AUDIT_PAUSE)
    for equal, text in findings:
        click.echo(f"{'equal ' if equal else 'DIFFER'}  {text}")
    return 0 if all(equal for equal, _ in findings) else 1


@cli.command(hidden=True)
@click.argument("name")
@click.option("--parent", type=int, required=True)
@click.option("--config-fd", type=int, required=True)
@click.option("--report-fd", type=int, required=True)
@click.option("--commands-fd", type=int)
def child(name: str, parent: int, config_fd: int, report_fd: int, commands_fd: int | None) -> int:
    """Be one process of a launch; `name` only shows in lists of processes."""
    from pontil.launcher.roles import Inheritance, run_child

    return run_child(Inheritance(parent, config_fd, report_fd, commands_fd))


def main() -> None:
    """The entry point: whatever a user does wrong ends in one sentence and an exit code, never in a traceback."""
    try:
        sys.exit(cli.main(prog_name=program_name(), standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(INTERRUPTED)


def program_name() -> Literal["pontil", "app.py"]:
    return "app.py" if Path(sys.argv[0]).name == "app.py" else "pontil"
