# SPDX-License-Identifier: Apache-2.0
"""API keys of clients: read from files and the environment, and kept only as digests from then on.

A line is KEY or NAME=KEY, followed by that client's settings (SETTINGS below); a line that begins with # is a comment.
In the environment commas or spaces separate keys, so a key there can have no settings.
"""

import hashlib
import re
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pontil.launcher.child.child import Child
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.private_file import PrivateFile
from pontil.launcher.options.environment import ADMIN_VARIABLE, CLIENT_VARIABLE
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.options.sources import closest
from pontil.launcher.plan.addresses import is_own
from pontil.runtime.config.readers import Reader, number, whole
from pontil.runtime.foundation.fair_share import ServiceClass

# Names with values, in the order of the table below. The proxy makes an Allowance of them.
Settings = tuple[tuple[str, Any], ...]
MOST_TOKENS = 2**31 - 1


def yes_or_no(value: str) -> bool:
    if value not in ("yes", "no"):
        raise ValueError("must be yes or no")
    return value == "yes"


def one_of(*words: str) -> Reader:
    """Return the reader of a setting that is one of these words."""

    def read(value: str) -> str:
        if value not in words:
            raise ValueError(f"must be one of {', '.join(words)}")
        return value

    return read


# Settings by the names that they had before.
FORMER = MappingProxyType({"weight": "share"})
SETTINGS: Mapping[str, Reader] = MappingProxyType(
    {
        "share": number(0.01, 1000),
        "class": one_of(*[each.word for each in ServiceClass]),
        "requests": whole(1),
        "tokens": whole(1),
        "rate": number(0.01, 1e6),
        "token_rate": number(1, MOST_TOKENS),
        "priority": yes_or_no,
    }
)


def read_key_settings(words: Iterable[str]) -> Settings:
    """Parse settings. Raises ValueError in words that follow the name of the line and never quote it: it may contain a
    key."""
    settings: dict[str, Any] = {}
    for word in words:
        name, is_setting, value = word.partition("=")
        if not is_setting:
            raise ValueError("is no key, or has something behind it that is no setting like share=2.")
        setting = FORMER.get(name, name)
        if setting not in SETTINGS:
            near = closest(name, SETTINGS)
            raise ValueError(
                f"has an unknown setting: did you mean {near!r}?"
                if near
                else f"has an unknown setting: there are {', '.join(SETTINGS)}."
            )
        if setting in settings:
            raise ValueError(f"sets {name} twice: leave one out.")
        try:
            settings[setting] = SETTINGS[setting](value)
        except ValueError as error:
            raise ValueError(f"sets {name}, which {error}.") from None
    return tuple((name, settings[name]) for name in SETTINGS if name in settings)


# A name that a log can show, and a bearer token (RFC 6750) that cannot be guessed.
LINE = re.compile(r"(?:([A-Za-z0-9][A-Za-z0-9._-]{0,63})=)?([A-Za-z0-9._~+/-]{16,512}=*)", re.ASCII)
# The proxy gets all digests in one message.
MOST_KEYS = 256
KEY_BYTES = 32
# Characters of a name that is made of a key: two of MOST_KEYS are alike in one of 10**10 files.
NAMED_BY = 12
MOST_BYTES = 1 << 18
ADMIN = "admin"
REMEDY = "write one key on each line, or NAME=KEY, of at least 16 letters and digits."


@dataclass(frozen=True, slots=True)
class ClientKeys:
    """Digests and settings of all clients. `callers` are names with digests (SHA-256, in hexadecimal), `admin` is the
    digest of the admin key, `allowances` are names with their settings."""

    callers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    admin: str | None = field(default=None, repr=False)
    allowances: tuple[tuple[str, Settings], ...] = ()

    @property
    def config(self) -> dict[str, Any]:
        """Return the fields of the proxy's configuration."""
        allowances = [[name, [list(setting) for setting in settings]] for name, settings in self.allowances]
        return {"callers": [list(caller) for caller in self.callers], "admin": self.admin, "allowances": allowances}


@dataclass(frozen=True, slots=True)
class KeyLine:
    """A key as a file or the environment has it; a client whose `name` is None is named after its key."""

    name: str | None
    key: str = field(repr=False)
    settings: Settings = ()


def read_client_keys(options: LaunchOptions, variables: Mapping[str, str]) -> ClientKeys:
    """Read the keys that this launch's clients must send. Raises OptionError for an invalid key, and if the server
    would be open to a network without any."""
    if options.join:
        return ClientKeys()
    key_lines = [
        *(of_file(Path(options.api_keys)) if options.api_keys else ()),
        *of_environment(CLIENT_VARIABLE, variables),
    ]
    admins = [
        *(of_file(Path(options.admin_key)) if options.admin_key else ()),
        *of_environment(ADMIN_VARIABLE, variables),
    ]
    if len(admins) > 1:
        raise OptionError(f"There is one admin key: give one line in --admin-key, or {ADMIN_VARIABLE}.")
    if admins and admins[0].settings:
        raise OptionError("The admin key has no settings: give only the key.")
    lines = called(key_lines)
    keys = ClientKeys(callers_of(lines), digest(admins[0].key) if admins else None, allowances_of(lines))
    if keys.admin in {key_digest for _, key_digest in keys.callers}:
        raise OptionError("The admin key is a client's key too: give it another one.")
    check_openness(options, keys)
    return keys


def of_environment(name: str, variables: Mapping[str, str]) -> list[KeyLine]:
    return list(of_text(f"Key {{}} of {name}", re.split(r"[,\s]+", variables.get(name, ""))))


def of_file(path: Path) -> list[KeyLine]:
    """Return the keys in a file. Raises OptionError if it has none: no keys would mean no access control."""
    text = PrivateFile(path, "file of API keys", REMEDY, MOST_BYTES).read()
    if len(text) == MOST_BYTES:
        raise OptionError(f"{path} is larger than a file of API keys can be: {REMEDY}")
    key_lines = list(of_text(f"Line {{}} of {path}", text.decode(errors="replace").splitlines()))
    if not key_lines:
        raise OptionError(f"{path} has no API key: {REMEDY}")
    return key_lines


def of_text(place: str, lines: Iterable[str]) -> Iterator[KeyLine]:
    """Yield each line that is no comment. Errors name a line by its `place` and never show it."""
    for index, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        here = place.replace("{}", str(index))
        first, *words = line.split()
        match = LINE.fullmatch(first)
        if match is None or match[1] == ADMIN:
            raise OptionError(f"{here} {f'names a client {ADMIN}' if match else 'is no key'}: {REMEDY}")
        try:
            yield KeyLine(match[1], match[2], read_key_settings(words))
        except ValueError as error:
            raise OptionError(f"{here} {error}") from None


def called(lines: Iterable[KeyLine]) -> list[KeyLine]:
    """Give every client a name. That of one without a name follows from its key, so that nobody inherits another's
    usage, limits, prefixes and responses when lines move, and tells nothing of the digest that the key is known by."""
    return [line if line.name else replace(line, name=f"key-{digest(digest(line.key))[:NAMED_BY]}") for line in lines]


def callers_of(lines: Iterable[KeyLine]) -> tuple[tuple[str, str], ...]:
    """Return names with digests. Raises OptionError for one key of two clients, and for too many."""
    callers: dict[str, str] = {}
    for index, line in enumerate(lines, 1):
        if callers.setdefault(digest(line.key), str(line.name)) != line.name:
            raise OptionError(f"API key {index} is there twice: give each client its own.")
    if len(callers) > MOST_KEYS:
        raise OptionError(f"There are {len(callers)} API keys, and {MOST_KEYS} is the most.")
    return tuple((name, key_digest) for key_digest, name in callers.items())


def allowances_of(lines: Iterable[KeyLine]) -> tuple[tuple[str, Settings], ...]:
    """Return names with their settings. A client has one set of limits, however many keys it has: raises OptionError if
    its lines differ."""
    settings: dict[str, Settings] = {}
    for index, line in enumerate(lines, 1):
        if settings.setdefault(str(line.name), line.settings) != line.settings:
            says = f"API key {index} is one of several of {line.name!r}, and their settings differ"
            raise OptionError(f"{says}: give each of them the same, in a file.")
    return tuple((name, client_settings) for name, client_settings in settings.items() if client_settings)


def new_line(name: str | None, settings: Sequence[str] = ()) -> str:
    """Return a line with a new random key and the client's settings. Raises OptionError for an invalid name or
    setting."""
    key = secrets.token_urlsafe(KEY_BYTES)
    line = key if name is None else f"{name}={key}"
    match = LINE.fullmatch(line)
    if match is None or match[1] != name or name == ADMIN:
        raise OptionError(f"{name!r} is no name for a client: give up to 64 letters, digits, dots or dashes.")
    try:
        read_key_settings(settings)
    except ValueError as error:
        raise OptionError(f"The new line {error}") from None
    return " ".join([line, *settings])


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def check_openness(options: LaunchOptions, keys: ClientKeys) -> None:
    """Raise OptionError for a server that is open to a network by accident."""
    if keys.callers or options.insecure or is_own(options.host):
        return
    raise OptionError(
        f"--host {options.host} can be reached from other machines: give --api-keys FILE, so that only who has a key "
        "is served, or --insecure if everyone on that network may send requests."
    )


def change_client_keys(read_keys: Callable[[], ClientKeys], children: Iterable[Child]) -> str:
    """Send the keys as they are now to the running proxies, and keep them for restarts. Return the outcome in words."""
    try:
        keys = read_keys()
    except OptionError as error:
        return f"the API keys stay what they were: {error.message}"
    proxies = [child for child in children if child.plan.is_proxy]
    changed_proxies = [
        child for child in proxies if any(child.plan.config[name] != it for name, it in keys.config.items())
    ]
    for child in changed_proxies:
        child.plan = child.plan.configured(**keys.config)
        if child.running:
            child.running.send({"kind": "client_keys", **keys.config})
    return f"API keys in use now: {len(keys.callers)}" if changed_proxies else "the API keys have not changed"
