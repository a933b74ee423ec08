# SPDX-License-Identifier: Apache-2.0
"""The golden records: all that the product shows of itself, as text. `tests/golden/record.py` writes them anew, and
what they then differ by is what a change means to those outside.

The frames of the wire have records of their own (tests/support/checks/recorded_frames.py), and so have the labels of
series (docs/operate/metrics.md).
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest.mock import patch

from click.testing import CliRunner
from help_texts import WIDTH
from prometheus_client import Metric
from scripted_site import site
from tiny_llama import byte_level_tokenizer, tokenizer_config, write_json, write_tiny_llama

from pontil.launcher.cli import cli
from pontil.launcher.commands import launch
from pontil.launcher.foundation.version import VERSION
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.topology import plan
from pontil.runtime.tokenizer.tokenizer import load_tokenizer

RECORDS = Path(__file__).resolve().parent / "records"
HELP_TEXTS = Path(__file__).resolve().parent / "help_texts.py"
# The machine of all plans.
MACHINE = HostDevices(tuple(range(8)), 8, 2, (80_000_000_000, 80_000_000_000))
# Lines of launch; {model} is a directory with a small model.
PLANS = (
    "",
    "--role mixed --model {model}",
    "--role mixed --mixed cpu:0-3,cpu:4-7 --port 8001 --served-model-name mine",
    "--prefill 0 --decode 1 --disagg always --max-num-seqs 8",
    "--prefill cpu:0-1+cpu:2-3 --decode cpu:4-7 --model {model}",
    "--proxies 2 --prefill cpu,cpu --decode cpu --usage-log usage.db --control tcp://127.0.0.1:7000",
    "--role proxy --control tcp://127.0.0.1:7000",
    "--role decode --decode cpu:0-3 --join tcp://127.0.0.1:7000",
    "--embedding-model {model} --embed cpu:7 --mixed cpu:0 --share-devices --role mixed",
    "--kv-tier memory:1GiB --max-model-len 4096",
    "--speculative-model ngram --speculative-tokens 3",
    "--model speech-demo --place recognizer=none,llm=cpu,speaker=cpu",
    "--model tiny-speech",
    "--on ray --decode cpu:0-3,0+1",
    "--prefill cpu:0 --decode cpu:0",
    "--role decode",
    "--prefill 3",
    "--port x",
)
# Lines of launch of which the configuration of every process is recorded, too.
CONFIGURED = (
    "",
    "--role mixed --mixed 0 --embedding-model bert --embed 1 --kv-tier memory:1GiB",
    "--model speech-demo",
)


def all_records() -> Iterator[tuple[str, str]]:
    """Yield the name of each record and its text."""
    with tempfile.TemporaryDirectory(prefix="golden-") as folder:
        yield "help.txt", subprocess.check_output([sys.executable, str(HELP_TEXTS)], text=True)
        yield "plans.txt", plans(Path(folder))
        children = spelled([configured(words) for words in CONFIGURED])
        yield "children.json", children.replace(f'"version": "{VERSION}"', '"version": "VERSION"') + "\n"
        yield from served(Path(folder))


def spelled(value: Any, indent: str = "") -> str:
    """Return JSON of which each line holds as much as fits."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    if len(indent) + len(text) <= WIDTH or not isinstance(value, dict | list) or not value:
        return text
    inner, (left, right) = indent + " ", "[]" if isinstance(value, list) else "{}"
    parts = (
        [spelled(each, inner) for each in value]
        if isinstance(value, list)
        else [f"{json.dumps(name)}: {spelled(each, inner)}" for name, each in value.items()]
    )
    return f"{left}\n" + ",\n".join(inner + part for part in parts) + f"\n{indent}{right}"


def plans(folder: Path) -> str:
    """Return the plans of a machine that has no models but one, with names in place of paths and process ids."""
    write_tiny_llama(folder / "model")
    around = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": str(folder), "PONTIL_CACHE": str(folder / "cache")}
    with patch.dict(os.environ, around, clear=True), patch.object(launch, "find_machine", lambda visible: MACHINE):
        text = "".join(shown(line, folder / "model") for line in PLANS)
        text += f"$ pontil config\n{CliRunner().invoke(cli, ['config']).output}"
    return re.sub(rf"{folder}/pontil/\d+", "RUN", text).replace(str(folder), "FOLDER")


def shown(line: str, model: Path) -> str:
    """Return a plan as it is printed, without figures of memory: what is left of it differs from host to host."""
    words = ["launch", "--dry-run", *line.format(model=model).split()]
    done = CliRunner().invoke(cli, words, prog_name="pontil", terminal_width=WIDTH)
    output = re.sub(r"of the .* left$", "of the … left", done.output, flags=re.MULTILINE)
    output = re.sub(r"[\d.]+ ([KMG]iB)", r"… \1", output)
    end = f"exit code {done.exit_code}\n" if done.exit_code else ""
    return f"$ pontil launch --dry-run {line}".rstrip() + f"\n{output}{end}\n"


def configured(line: str) -> dict[str, Any]:
    """Return what each process of a launch is told."""
    words = cli.commands["launch"].make_context("launch", line.split()).params
    options = read_options({name: value for name, value in words.items() if name not in ("config", "dry_run")})
    made = plan(options, MACHINE, Path("RUN"), Path("CACHE"))
    return {"launch": line, "prepare": asdict(made.prepare), "children": [asdict(child) for child in made.children]}


def served(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield what a server with two workers says of itself."""
    directory = folder / "tokenizer"
    directory.mkdir()
    byte_level_tokenizer().save(str(directory / "tokenizer.json"))
    write_json(directory / "tokenizer_config.json", tokenizer_config())
    with site(folder, load_tokenizer(directory)) as made:
        made.pair()
        yield "openapi.json", spelled(made.ask("GET", "/openapi.json").json) + "\n"
        yield "metrics.txt", "".join(family(each) for each in made.proxy.metrics.registry.collect())


def family(metric: Metric) -> str:
    """Return a family with its series, without their values; the buckets of a histogram are one."""
    series: dict[str, str] = {}
    for sample in metric.samples:
        if sample.name.endswith("_created"):
            continue
        labels = [f"{name}={value}" for name, value in sample.labels.items() if name != "le"]
        name = " ".join([sample.name, *labels])
        series[name] = " ".join([*series.get(name, "").split(), *sample.labels.get("le", "").split()])
    lines = [f"  {name}{f': {bounds}' if bounds else ''}\n" for name, bounds in sorted(series.items())]
    return f"{metric.name}, {metric.type}: {metric.documentation}\n{''.join(lines)}"
