# SPDX-License-Identifier: Apache-2.0
"""The models of a launch, each with the options of a launch of its own: those of all, and what its table says."""

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.options import OPTIONS, LaunchOptions, flag_name
from pontil.launcher.options.sources import checked, load_toml, nearest
from pontil.runtime.config.worker_config import WorkerOptions

# The options of a table: its model, how chats are read, its workers, and how they compute.
PHASED, ALONE = ("prefill", "decode"), "mixed"
TABLED = {
    "model",
    "adapter",
    "tool_call_parser",
    "reasoning_parser",
    "hide_end_token",
    "kv_tier",
    *PHASED,
    ALONE,
    *(option.name for option in fields(WorkerOptions)),
} - {"revision", "log_level", "allow_chaos", "lease_client_memory", "adapter_directory"}
DECLARED = {flag_name(option): option for option in OPTIONS if option.name in TABLED}


def options_of_models(options: LaunchOptions) -> tuple[LaunchOptions, ...]:
    """Return the options of each model, the first one's first. Raises OptionError."""
    if options.models is None:
        made = tuple(replace(options, model=(name,)) for name in options.model)
    else:
        made = tuple(read_tables(options, Path(options.models)))
    names = [one.model_name for one in made]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise OptionError(f"The model {twice} is there twice: name each once.")
    return made


def read_tables(options: LaunchOptions, path: Path) -> list[LaunchOptions]:
    """Return the options of the models in a file, by whose names the tables are called. Raises OptionError."""
    tables = load_toml(path, "file of models")
    if not tables:
        raise OptionError(f"{path.name} has no table: write one for each model, like [name].")
    return [with_table(options, name, table, path.name) for name, table in tables.items()]


def with_table(options: LaunchOptions, name: str, table: object, file: str) -> LaunchOptions:
    if not isinstance(table, Mapping):
        raise OptionError(f"{name} in {file} is no table: write [{name}], and below it what it says.")
    unknown = next((key for key in table if key not in DECLARED), None)
    if unknown is not None and isinstance(table[unknown], Mapping):
        raise OptionError(
            f'[{name}.{unknown}] in {file} is a table in a table: a name with dots needs quotes, like ["a.b"].'
        )
    if unknown is not None:
        raise OptionError(f"[{name}] in {file} has an unknown key {unknown!r}{nearest(unknown, DECLARED)}")
    values: dict[str, Any] = {
        DECLARED[key].name: checked(DECLARED[key], value, f"{key} of [{name}] in {file}")
        for key, value in table.items()
    }
    if len(values.get("model", (name,))) != 1:
        raise OptionError(f"model of [{name}] in {file} names several: write a table for each.")
    check_phases(values, name, file)
    return replace(
        options,
        **(
            {
                "model": (name,),
                "served_model_name": name,
            }
            | values
            | placed(options, values)
        ),
    )


def check_phases(values: Mapping[str, Any], name: str, file: str) -> None:
    if ALONE in values and any(phase in values for phase in PHASED):
        raise OptionError(f"[{name}] in {file} has workers for both phases, and for one: name one kind.")


def placed(options: LaunchOptions, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the role that follows from the workers that a table names, in the place of those of other models."""
    if options.role == "proxy":
        return dict.fromkeys((*PHASED, ALONE))
    if not any(kind in values for kind in (*PHASED, ALONE)) or options.role not in ("all", ALONE):
        return {}
    lists = {kind: values.get(kind) for kind in (*PHASED, ALONE)}
    return lists | {"role": ALONE if ALONE in values else "all"}
