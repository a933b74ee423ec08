# SPDX-License-Identifier: Apache-2.0
"""The sources of an option's value: its default, a file, the environment or a flag, in rising precedence.

Each of them knows an option by one name: `max-num-seqs` in the file, PONTIL_MAX_NUM_SEQS, --max-num-seqs.

Of the environment, the variables that Kubernetes puts into every container for the Services of its namespace ("service
links") are no options of a launch and must not be read as such (kubernetes.io, "Service", "Environment variables"). For
a Service `pontil` with port 8000 they are PONTIL_SERVICE_HOST, PONTIL_SERVICE_PORT, PONTIL_SERVICE_PORT_<name>,
PONTIL_PORT=tcp://10.0.0.7:8000, PONTIL_PORT_8000_TCP, and the last with _PROTO, _PORT and _ADDR behind it.
"""

import difflib
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass
from pathlib import Path
from typing import Any, Literal

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.environment import OWN_VARIABLES, PREFIX

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Source = Literal["default", "file", "environment", "flag"]
# Dataclass fields by option name; `read` in their metadata checks a value.
Declarations = Mapping[str, Field[Any]]
HOST, PORT = "_SERVICE_HOST", "_SERVICE_PORT"
PROTOCOLS = "TCP|UDP|SCTP"
ADDRESS = re.compile(rf"({PROTOCOLS})://\S+:\d+", re.IGNORECASE)
LINK = re.compile(rf"_PORT_\d+_({PROTOCOLS})(_PROTO|_PORT|_ADDR)?")


def service_links(variables: Mapping[str, str]) -> set[str]:
    """Return the names of these variables. A Service always has a host and a port: variables that look like links but
    lack those two were set by the user."""
    services = [name.removesuffix(HOST) for name in variables if name.endswith(HOST)]
    return {link for name in services if name + PORT in variables for link in links_of(name, variables)}


def links_of(service: str, variables: Mapping[str, str]) -> Iterator[str]:
    for name, value in variables.items():
        suffix = name.removeprefix(service)
        is_known_link = suffix in (HOST, PORT) or suffix.startswith(f"{PORT}_") or LINK.fullmatch(suffix)
        if suffix != name and (is_known_link or (suffix == "_PORT" and ADDRESS.fullmatch(value))):
            yield name


@dataclass(frozen=True, slots=True)
class Setting:
    """One option and its effective value. `place` is where the source has it: a file, a variable, a flag; "" for
    none."""

    name: str
    value: Any
    source: Source
    place: str

    @property
    def field(self) -> str:
        return self.name.replace("-", "_")


def settle(
    declarations: Declarations, given: Mapping[str, Any], config: Path | None, variables: Mapping[str, str]
) -> list[Setting]:
    """Return every option in the order of its declaration. `given` are the flags by field, absent ones None. Values
    that a stronger source overrides must be valid too. Raises OptionError."""
    settings = {name: Setting(name, declaration.default, "default", "") for name, declaration in declarations.items()}
    if config is not None:
        settings |= from_file(declarations, config)
    settings |= from_environment(declarations, variables)
    settings |= from_flags(declarations, given)
    return list(settings.values())


def from_file(declarations: Declarations, path: Path) -> dict[str, Setting]:
    values = load_toml(path)
    for key in values:
        if key not in declarations:
            raise OptionError(f"{path.name} has an unknown key {key!r}{nearest(key, declarations)}")
    return {
        key: Setting(key, checked(declarations[key], value, f"{key} in {path.name}"), "file", str(path))
        for key, value in values.items()
    }


def from_environment(declarations: Declarations, variables: Mapping[str, str]) -> dict[str, Setting]:
    """Return the options set in the environment. An empty variable counts as unset, as it does for the paths that the
    environment decides. The variables that Kubernetes sets for a Service named like pontil are ignored."""
    names_by_variable = {variable_name(name): name for name in declarations}
    settings, other_variables = {}, {*OWN_VARIABLES, *service_links(variables)}
    for variable, value in variables.items():
        if not variable.startswith(PREFIX) or variable in other_variables or not value:
            continue
        if variable not in names_by_variable:
            raise OptionError(
                f"The environment has an unknown {variable}{nearest(variable, [*names_by_variable, *OWN_VARIABLES])}"
            )
        name = names_by_variable[variable]
        settings[name] = Setting(name, checked(declarations[name], value, variable), "environment", variable)
    return settings


def from_flags(declarations: Declarations, given: Mapping[str, Any]) -> dict[str, Setting]:
    flags = {name: f"--{name}" for name, declaration in declarations.items() if given.get(declaration.name) is not None}
    return {
        name: Setting(name, checked(declarations[name], given[declarations[name].name], flag), "flag", flag)
        for name, flag in flags.items()
    }


def variable_name(option: str) -> str:
    return PREFIX + option.upper().replace("-", "_")


def load_toml(path: Path, kind: str = "configuration file") -> dict[str, Any]:
    """Return the values of a file, which messages call the `kind` that it is. Raises OptionError."""
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except OSError as error:
        raise OptionError(f"The {kind} {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"The {kind} {path} is not valid TOML: {error}.") from error


def nearest(name: str, known_names: Iterable[str]) -> str:
    """Return the end of a sentence about an unknown name: a suggestion of the closest known one."""
    close = closest(name, known_names)
    return f": did you mean {close!r}?" if close else "; `launch --help` lists the known ones."


def closest(name: str, known_names: Iterable[str]) -> str | None:
    """Return the known name that is most likely meant."""
    alike = {plain(candidate): candidate for candidate in known_names}
    close = difflib.get_close_matches(plain(name), alike, n=1, cutoff=0.5)
    return alike[close[0]] if close else None


def plain(name: str) -> str:
    """Return the name without the prefix that all names of a source share."""
    return name.removeprefix(PREFIX).replace("_", "-").lower()


def checked(declaration: Field[Any], value: Any, name: str) -> Any:
    try:
        return declaration.metadata["read"](value)
    except ValueError as error:
        raise OptionError(f"{name} {error}, not {value!r}.") from error
