# SPDX-License-Identifier: Apache-2.0
"""The command `bench`, a load for any OpenAI-compatible server."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pontil.launcher.foundation.errors import LaunchError, OptionError
from pontil.launcher.foundation.server_url import full_url
from pontil.launcher.keys.api_key import CLIENT, bearer, key_flag
from pontil.launcher.options.options import read_environment

# The rest is imported where it is used: no other command needs asyncio.
if TYPE_CHECKING:
    from pontil.launcher.tools.bench.bench import LoadBench
    from pontil.launcher.tools.bench.figures import Limits
    from pontil.launcher.tools.bench.questions import Question
    from pontil.launcher.tools.bench.stream_client import BenchTarget

MOST_STREAMS, MOST_RATE = 4096, 100_000.0


def many(kind: Callable[[str], float], most: float) -> Callable[..., tuple[float, ...] | None]:
    """Return the callback of an option with numbers separated by commas, each above zero and at most `most`."""

    def read(ctx: click.Context, param: click.Parameter, value: str | None) -> tuple[float, ...] | None:
        if value is None:
            return None
        try:
            numbers = tuple(kind(number) for number in value.split(","))
        except ValueError:
            numbers = ()
        if not numbers or not all(0 < number <= most for number in numbers):
            raise click.BadParameter(
                f"write numbers above 0 and up to {most:g}, separated by commas, like 1,8", ctx, param
            )
        return numbers

    return read


LIMIT = click.FloatRange(0, min_open=True)
PATH = click.Path(path_type=Path)


@click.command(short_help="Measure any OpenAI-compatible server.")
@click.argument("url")
@click.option("--compare", metavar="URL", help="Another server: each load is put on both, one after the other.")
@click.option("--compare-model", metavar="NAME", help="The model to ask it for (default: the first that it serves).")
@click.option("--compare-key", type=PATH, metavar="FILE", help="File whose first key is shown to it (default: none).")
@click.option("--model", metavar="NAME", help="The model to ask for (default: the first that is served).")
@click.option(
    "--endpoint",
    type=click.Choice(["completions", "chat"]),
    default="completions",
    show_default=True,
    help="completions sends token ids; chat sends words, about as many tokens.",
)
@click.option(
    "--concurrency",
    callback=many(int, MOST_STREAMS),
    default="1,8",
    metavar="N,…",
    show_default=True,
    help="Closed loop: streams at once, one run each.",
)
@click.option(
    "--request-rate",
    callback=many(float, MOST_RATE),
    metavar="R,…",
    help="Open loop instead: requests a second, at random moments.",
)
@click.option("--find-rate", is_flag=True, help="Search the highest rate at which --share of requests keep the limits.")
@click.option(
    "--share",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.9,
    show_default=True,
    help="Share of requests for --find-rate.",
)
@click.option("--ttft-limit", type=LIMIT, metavar="MS", help="Longest time to first token of a good request.")
@click.option("--tpot-limit", type=LIMIT, metavar="MS", help="Longest mean time per token of a good request.")
@click.option("--itl-limit", type=LIMIT, metavar="MS", help="Longest median time between events of a good request.")
@click.option("--requests", type=click.IntRange(1), help="Requests of one run (default: by --requests-per-stream).")
@click.option("--requests-per-stream", type=click.IntRange(1), default=4, show_default=True)
@click.option("--prompt-tokens", type=click.IntRange(1), default=256, show_default=True)
@click.option("--output-tokens", type=click.IntRange(1), default=64, show_default=True)
@click.option("--lengths", type=PATH, metavar="CSV", help="Recorded turns, instead of the two above.")
@click.option(
    "--longest",
    type=click.IntRange(1),
    default=2048,
    show_default=True,
    help="Longest recorded turn to ask, prompt and answer.",
)
@click.option(
    "--vocabulary", type=click.IntRange(101), default=40_000, show_default=True, help="Random token ids lie below this."
)
@click.option("--no-ignore-eos", is_flag=True, help="For servers that know no ignore_eos: answers may be shorter.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed, other prompts.")
@click.option("--timeout", type=LIMIT, default=600.0, show_default=True, help="Longest silence of a stream, seconds.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each run instead of a table.")
@click.option("--raw", type=PATH, metavar="FILE", help="Append each request's figures, one JSON object a line.")
@click.option("--png", type=PATH, metavar="FILE", help="Draw TTFT and goodput over the load.")
@key_flag(CLIENT)
def bench(**given: Any) -> int:
    """Put a load on the OpenAI-compatible server at URL and print what its clients saw.

    Prompts are random and greedy answers have exactly the requested length, so that servers can be compared. One
    request to warm up comes first. The load shares the machine with a server that runs on it. Exit code 1 when a
    request failed.
    """
    from pontil.launcher.tools.bench.bench import LoadBench
    from pontil.launcher.tools.bench.figures import Limits

    limits = Limits(given["ttft_limit"], given["tpot_limit"], given["itl_limit"])
    check(given, limits)
    load_bench = LoadBench(
        targets_of(given),
        questions_of(given),
        limits,
        given["requests"],
        given["requests_per_stream"],
        given["timeout"],
        given["seed"],
        given["raw"],
        given["as_json"],
    )
    load_bench.warm_up()
    search_row = load_bench.search((given["request_rate"] or (1.0,))[0], given["share"]) if given["find_rate"] else None
    if search_row is None:
        measure_loads(load_bench, given)
    finish(load_bench, search_row, given)
    return 1 if any(row["failures"] for row in load_bench.rows) else 0


def check(given: dict[str, Any], limits: "Limits") -> None:
    """Raise OptionError for options that go with no others given, before anything is sent."""
    from pontil.launcher.tools.bench.extra import require

    require("aiohttp", "bench sends its requests")
    if given["png"]:
        require("matplotlib", "--png draws")
    if given["find_rate"] and (not limits.given or given["compare"]):
        raise OptionError(
            "--find-rate measures one server by its limits: give --ttft-limit, --tpot-limit or --itl-limit, and no "
            "--compare"
        )
    for name in ("raw", "png"):
        if given[name] and not given[name].resolve().parent.is_dir():
            raise OptionError(f"--{name} {given[name]}: there is no folder {given[name].resolve().parent}")


def questions_of(given: dict[str, Any]) -> "Callable[[int], Iterator[Question]]":
    """Return what makes a run's questions from its seed. Raises OptionError for a file that cannot be used."""
    from pontil.launcher.tools.bench.questions import fixed, recorded

    vocabulary = given["vocabulary"]
    if given["lengths"] is None:
        return partial(fixed, given["prompt_tokens"], given["output_tokens"], vocabulary)
    make_questions = partial(recorded, given["lengths"], given["longest"], vocabulary)
    try:
        make_questions(0)
    except ValueError as error:
        raise OptionError(f"--lengths: {error}") from None
    return make_questions


def targets_of(given: dict[str, Any]) -> "dict[str, BenchTarget]":
    """Return the servers by the names under which they are shown. A key is shown only to the server that it was given
    for. Raises LaunchError, OptionError."""
    targets = target_of(given, given["url"], given["model"], bearer(given["key"], CLIENT, read_environment().variables))
    if not given["compare"]:
        return targets
    other_targets = target_of(given, given["compare"], given["compare_model"], bearer(given["compare_key"], (), {}))
    if set(targets) == set(other_targets):
        raise OptionError("--compare needs another address than the first one's")
    return targets | other_targets


def target_of(given: dict[str, Any], url: str, model: str | None, key: dict[str, str]) -> "dict[str, BenchTarget]":
    from pontil.launcher.foundation.server_client import first_model
    from pontil.launcher.tools.bench.stream_client import BenchTarget

    full = full_url(url)
    target = BenchTarget(full, model or first_model(full, key), given["endpoint"], key, not given["no_ignore_eos"])
    return {full.partition("://")[2]: target}


def measure_loads(load_bench: "LoadBench", given: dict[str, Any]) -> None:
    from pontil.launcher.tools.bench.bench_run import Load

    loads = [Load(request_rate=rate) for rate in given["request_rate"] or ()]
    for load in loads or [Load(concurrency=int(streams)) for streams in given["concurrency"]]:
        for figures in load_bench.measure(load):
            if given["as_json"]:
                click.echo(json.dumps(figures))


def finish(load_bench: "LoadBench", search_row: dict[str, Any] | None, given: dict[str, Any]) -> None:
    """Print the table, the result of a search, and draw. Raises LaunchError."""
    from pontil.launcher.tools.bench.report import definitions, draw, ratio, table

    if given["as_json"]:
        for row in (*(load_bench.rows if search_row else ()), *([search_row] if search_row else ())):
            click.echo(json.dumps(row))
    else:
        rows = load_bench.rows
        if given["compare"]:
            pairs = zip(rows[::2], rows[1::2], strict=True)
            rows = [row for first, second in pairs for row in (first, second, ratio(first, second))]
        for text in table(rows):
            click.echo(text)
        if search_row:
            click.echo("\n" + found_sentence(search_row))
        for text in ("", *definitions()):
            click.echo(text, err=True)
    if given["png"]:
        try:
            draw(load_bench.rows, given["png"])
        except OSError as error:
            raise LaunchError(f"{given['png']} cannot be written: {error}") from None


def found_sentence(search_row: dict[str, Any]) -> str:
    rate, share = search_row["highest_request_rate"], search_row["share"]
    if rate is None:
        return f"At no rate that was tried did {share:.0%} of the requests keep their limits."
    return f"{share:.0%} of the requests keep their limits at up to {rate:g} requests a second."
