# SPDX-License-Identifier: Apache-2.0
"""The kinds of workers of a plan: one for each profile, by name, and options that say something of each."""

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pontil.launcher.foundation.errors import OptionError

if TYPE_CHECKING:
    from pontil.runtime.planner.device_profile import DeviceProfile

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


# Generic in some versions of click alone.
class OfEachProfile(click.ParamType):  # type: ignore[type-arg]
    """A number for the one profile of a plan, or one for each of several: NAME:NUMBER, with commas between them."""

    name = "number"

    def __init__(self, number: "click.ParamType[Any]") -> None:
        self.number = number

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str) or ":" not in value:
            return self.finite(value, param, ctx)
        found = dict[str, Any]()
        for item in value.split(","):
            name, _, number = item.strip().partition(":")
            if not NAME.fullmatch(name) or name in found:
                self.fail(f"{value!r:.60} is no list like big:1,small:2, with each profile once.", param, ctx)
            found[name] = self.finite(number, param, ctx)
        return found

    def finite(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = self.number.convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r:.60} is no number to count with.", param, ctx)
        return number


def profiles_of(files: Sequence[str], model: str | None) -> "dict[str, DeviceProfile]":
    """Return the profiles of a plan by their names: those given before a file, or the files' own. Raises OptionError
    for those of which no launch can be."""
    made: dict[str, DeviceProfile] = {}
    for file in files:
        name, path = named(file)
        if len(files) > 1 and not NAME.fullmatch(name):
            raise OptionError(f"--profile {file}: one of several needs a plain name, so give it one, like big={path}.")
        if name in made:
            raise OptionError(f"--profile: two profiles are called {name}: give one another name, like other={path}.")
        made[name] = profile_of(path, model)
    (first, one), *others = made.items()
    for name, other in others:
        check_together(first, one, name, other)
    return made


def named(file: str) -> tuple[str, Path]:
    """Return the name and the path of a profile, which is given as NAME=PATH or PATH."""
    name, sign, path = file.partition("=")
    return (name, Path(path)) if sign and NAME.fullmatch(name) else (Path(file).stem, Path(file))


def check_together(first: str, one: "DeviceProfile", second: str, other: "DeviceProfile") -> None:
    """Raise OptionError for two profiles whose workers could not serve the same requests."""
    if (one.about.model, one.about.fingerprint) != (other.about.model, other.about.fingerprint):
        raise OptionError(
            f"--profile {second} is of {other.about.model}, and {first} of {one.about.model}: all workers of a launch "
            "have the same weights, so measure both with the same model."
        )
    kv = [(each.sizes.block_tokens, each.about.kv_cache_dtype) for each in (one, other)]
    if kv[0] != kv[1]:
        told = [f"blocks of {tokens} tokens in {dtype}" for tokens, dtype in kv]
        raise OptionError(
            f"--profile {second} has KV {told[1]}, and {first} {told[0]}: no worker could pull from the other, so "
            "measure both with the same --block-size and --kv-cache-dtype."
        )


def profile_of(file: Path, model: str | None) -> "DeviceProfile":
    """Return the profile in a file. Raises OptionError for one that cannot be used."""
    from pontil.runtime.planner.device_profile import MOST_BYTES, ProfileError, read_profile

    try:
        with file.open("rb") as opened:
            made = read_profile(opened.read(MOST_BYTES + 1))
    except OSError as error:
        raise OptionError(f"--profile {file} cannot be read: {error.strerror}.") from None
    except ProfileError as error:
        raise OptionError(f"--profile {file}: {error}.") from None
    if model is not None and model != made.about.model:
        raise OptionError(
            f"--profile {file} is of {made.about.model}, and not of {model}: measure that with `pontil profile`."
        )
    return made


def of_each(flag: str, value: Any, names: Sequence[str]) -> tuple[Any, ...]:
    """Return the number that an option has for each profile, 0 for one that it does not name. Raises OptionError."""
    if not isinstance(value, Mapping):
        if value and len(names) > 1:
            raise OptionError(f"--{flag} {value} does not say of which profile: give it like {names[0]}:{value}.")
        return (value or 0,) * len(names)
    if unknown := sorted(value.keys() - set(names)):
        raise OptionError(
            f"--{flag} has {unknown[0]}, and no profile of that name was given: there is {', '.join(names)}, and each "
            "can have a number."
        )
    return tuple(value.get(name, 0) for name in names)
