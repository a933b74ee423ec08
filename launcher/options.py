# SPDX-License-Identifier: Apache-2.0
"""The options of a launch, each declared once, and everything that is read from the environment.

A field's type, default, help and reader make both the flag and the key of the configuration file: flags win over the
file, the file over the defaults.
"""

import difflib
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from pontil.launcher.devices import DeviceItem, parse_list
from pontil.launcher.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Role = Literal["all", "proxy", "prefill", "decode", "mixed"]
# Turns what a flag or a file gave into the field's value; ValueError carries words that follow the flag's name.
Reader = Callable[[Any], Any]
WILDCARDS = ("0.0.0.0", "::", "0", "")
LOOPBACK = ("localhost", "::1")
# glibc returns large pieces to the system at once and takes page faults to get them again: at a context of 1,600 tokens
# that was a third of a step. 32 MiB is the most it takes for the first.
MEMORY_IS_KEPT = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(512 << 20)}
UNITS = {"": 1} | {
    f"{letter}{suffix}": base**power
    for power, letter in enumerate("KMGT", 1)
    for suffix, base in (("B", 1000), ("IB", 1024))
}


def text(value: Any) -> str:
    if not isinstance(value, str) or not value or not value.isprintable():
        raise ValueError("must be a text on one line")
    return value


def choice(*names: str) -> Reader:
    def read(value: Any) -> str:
        if value not in names:
            raise ValueError(f"must be one of {', '.join(names)}")
        return str(value)

    return read


def whole(low: int, high: int = 2**31 - 1) -> Reader:
    def read(value: Any) -> int:
        if isinstance(value, str) and re.fullmatch(r"\d{1,12}", value, re.ASCII):
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"must be a whole number from {low} to {high}")
        return value

    return read


def seconds(value: Any) -> float:
    if isinstance(value, str) and re.fullmatch(r"\d{1,9}(\.\d{1,9})?", value, re.ASCII):
        value = float(value)
    if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value <= 1e6:
        raise ValueError("must be a number of seconds from 0 to 1000000")
    return float(value)


def size(value: Any) -> int:
    """Bytes, from a whole number of them or from a number with a unit: 2GiB is 2**31, 512MB is 512000000."""
    parts = re.fullmatch(r"(\d{1,15}(?:\.\d{1,9})?)\s*([A-Z]*)", str(value).upper(), re.ASCII)
    if isinstance(value, bool) or parts is None or parts[2] not in UNITS or ("." in parts[1] and not parts[2]):
        raise ValueError("must be a size like 2GiB, 512MB or a number of bytes")
    count = int(float(parts[1]) * UNITS[parts[2]])
    if not count:
        raise ValueError("must be more than nothing")
    return count


def switch(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("must be true or false")
    return value


def devices(value: Any) -> tuple[DeviceItem, ...]:
    if isinstance(value, list):
        value = ",".join(str(item) for item in value)
    return parse_list(str(value))


def endpoint(value: Any) -> str:
    """A zmq address that others can be told: a socket file, or a host and a port (no wildcard)."""
    port = re.fullmatch(r"tcp://(?:[A-Za-z0-9._-]{1,253}|\[[0-9A-Fa-f:.]{2,45}\]):(\d{1,5})", str(value), re.ASCII)
    if not re.fullmatch(r"ipc:///[^\s]+", str(value)) and not (port and 0 < int(port[1]) < 65536):
        raise ValueError("must be ipc:///PATH or tcp://HOST:PORT")
    if host_of(str(value)) in WILDCARDS:
        raise ValueError("must name the address by which the other hosts reach this one")
    return str(value)


def host_of(address: str) -> str | None:
    """The host of a tcp endpoint, without brackets; None for a socket file."""
    if not address.startswith("tcp://"):
        return None
    return address.removeprefix("tcp://").rpartition(":")[0].strip("[]")


def flag(section: str, default: Any, meaning: str, read: Reader, metavar: str = "") -> Any:
    return field(
        default=default, metadata={"section": section, "help": meaning, "read": read, "metavar": metavar or "TEXT"}
    )


MODEL, PROCESSES, NETWORK = "Model", "Processes and devices", "Network"
ENGINE, SUPERVISION = "Engine", "Supervision"
ROLES = ("all", "proxy", "prefill", "decode", "mixed")
DTYPES = ("auto", "float32", "bfloat16", "float16")
KERNELS = ("auto", "torch", "amx", "avx512bf16", "avx512", "avx2", "generic")
QUANTIZATIONS = ("none", "int8", "gguf")
LEVELS = ("debug", "info", "warning", "error")


@dataclass(frozen=True, slots=True)
class LaunchOptions:
    """What `launch` was asked for: sizes in bytes, times in seconds, None where the machine or the model decides."""

    model: str = flag(
        MODEL, "smollm2-135m-instruct", "A built-in model's name, a model directory or a GGUF file.", text, "NAME|PATH"
    )
    served_model_name: str | None = flag(MODEL, None, "What clients call the model (default: its own name).", text)
    dtype: str = flag(MODEL, "auto", "Type of weights and KV cache.", choice(*DTYPES), "|".join(DTYPES))
    max_model_len: int | None = flag(MODEL, None, "Longest prompt plus answer, in tokens.", whole(1), "TOKENS")
    quantization: str = flag(
        MODEL, "none", "Weights below 16 bits on a CPU: int8, or as the GGUF file has them.", choice(*QUANTIZATIONS),
        "|".join(QUANTIZATIONS),
    )  # fmt: skip
    role: Role = flag(
        PROCESSES, "all", "Which processes run here; mixed is one worker for both phases.", choice(*ROLES),
        "|".join(ROLES),
    )  # fmt: skip
    prefill: tuple[DeviceItem, ...] | None = flag(
        PROCESSES, None, "Prefill workers, one per item: 0 or cuda:0, cpu, cpu:0-3, cpu*2; none for none.",
        devices, "LIST",
    )  # fmt: skip
    decode: tuple[DeviceItem, ...] | None = flag(PROCESSES, None, "Decode workers, in the same way.", devices, "LIST")
    mixed: tuple[DeviceItem, ...] | None = flag(
        PROCESSES, None, "Workers for both phases, in the same way; with --role mixed.", devices, "LIST"
    )
    share_devices: bool = flag(PROCESSES, False, "Allow two workers on one core or GPU.", switch)
    host: str = flag(NETWORK, "127.0.0.1", "Address clients connect to.", text, "ADDRESS")
    port: int = flag(NETWORK, 8000, "Port clients connect to; 0 takes a free one.", whole(0, 65535), "PORT")
    control: str | None = flag(
        NETWORK, None, "Where workers register with the proxy (default: a socket in the run directory).",
        endpoint, "ENDPOINT",
    )  # fmt: skip
    join: str | None = flag(
        NETWORK, None, "Start workers only, for the proxy whose --control this is.", endpoint, "ENDPOINT"
    )
    insecure: bool = flag(
        NETWORK, False, "Let control and KV cross a network without keys; only on one you trust.", switch
    )
    disagg: str = flag(
        ENGINE, "always", "Whether prefill and decode are split.", choice("always", "never"), "always|never"
    )
    max_num_seqs: int = flag(ENGINE, 64, "Sequences a worker runs at once.", whole(1, 65536), "COUNT")
    max_num_batched_tokens: int = flag(ENGINE, 256, "Tokens a worker computes in one step.", whole(1), "TOKENS")
    max_interleaved_tokens: int | None = flag(
        ENGINE,
        None,
        "Prompt tokens computed in a step in which others decode (default: 64 on a CPU).",
        whole(1),
        "TOKENS",
    )
    block_size: int = flag(ENGINE, 16, "Tokens in one block of KV cache.", whole(1, 1024), "TOKENS")
    prefix_caching: bool = flag(
        ENGINE, True, "Keep computed prompts, so that those that begin alike are not computed again.", switch
    )
    speculative_tokens: int = flag(
        ENGINE, 0, "Tokens guessed at a time from what stood before; changes no answer, only its speed.", whole(0, 16),
        "COUNT",
    )  # fmt: skip
    kv_cache_memory: int | None = flag(ENGINE, None, "KV cache of each worker, like 2GiB or 512MB.", size, "SIZE")
    kv_connector: str = flag(
        ENGINE, "auto", "What carries KV blocks; auto: shm on one host, else tcp.",
        choice("auto", "shm", "tcp"), "auto|shm|tcp",
    )  # fmt: skip
    kernels: str = flag(
        ENGINE, "auto", "What computes on a CPU: our kernels for an instruction set, or torch.", choice(*KERNELS),
        "auto|torch|SET",
    )  # fmt: skip
    log_level: str = flag(SUPERVISION, "info", "Least severity that is logged.", choice(*LEVELS), "|".join(LEVELS))
    start_timeout: float = flag(SUPERVISION, 600.0, "Longest time to ready of a process.", seconds, "SECONDS")
    usage_log: str | None = flag(
        SUPERVISION, None, "Keep the usage of every request in this SQLite file; `pontil usage` reads it.", text, "FILE"
    )
    drain_timeout: float = flag(
        SUPERVISION, 30.0, "Longest wait for requests to finish after SIGTERM.", seconds, "SECONDS"
    )
    max_attempts: int = flag(
        SUPERVISION, 3, "Workers, one after the other, that a request may break before it is an error.", whole(1, 100),
        "COUNT",
    )  # fmt: skip
    failover_timeout: float = flag(
        SUPERVISION, 120.0, "Longest wait of a request for a worker to come back.", seconds, "SECONDS"
    )
    restart_attempts: int = flag(
        SUPERVISION, 5, "Restarts of one process within the window before it is given up.", whole(0, 1000), "COUNT"
    )
    restart_window: float = flag(SUPERVISION, 120.0, "The window in which restarts are counted.", seconds, "SECONDS")
    restart_delay: float = flag(SUPERVISION, 0.5, "Pause before the first restart; doubles.", seconds, "SECONDS")
    restart_max_delay: float = flag(SUPERVISION, 10.0, "Longest pause before a restart.", seconds, "SECONDS")


def flag_name(declared: Field[Any]) -> str:
    return declared.name.replace("_", "-")


def read_options(given: Mapping[str, Any], config: Path | None = None) -> LaunchOptions:
    """The options from flags (by field name, absent ones None) over a configuration file. Raises OptionError."""
    declared = {flag_name(each): each for each in fields(LaunchOptions)}
    values: dict[str, Any] = {}
    if config is not None:
        for key, value in load_config(config).items():
            if key not in declared:
                raise OptionError(f"{config.name} has an unknown key {key!r}{nearest(key, declared)}")
            values[declared[key].name] = checked(declared[key], value, f"{key} in {config.name}")
    for name, each in declared.items():
        if given.get(each.name) is not None:
            values[each.name] = checked(each, given[each.name], f"--{name}")
    return LaunchOptions(**values)


def load_config(path: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = tomllib.loads(path.read_text(encoding="utf-8"))
        return values
    except OSError as error:
        raise OptionError(f"The configuration file {path} cannot be read: {error.strerror}.") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise OptionError(f"The configuration file {path} is not valid TOML: {error}.") from error


def nearest(key: str, known: Mapping[str, Any]) -> str:
    close = difflib.get_close_matches(key.replace("_", "-"), known, n=1, cutoff=0.5)
    return f": did you mean {close[0]!r}?" if close else "; `launch --help` lists the known ones."


def checked(declared: Field[Any], value: Any, name: str) -> Any:
    try:
        return declared.metadata["read"](value)
    except ValueError as error:
        raise OptionError(f"{name} {error}, not {value!r}.") from error


@dataclass(frozen=True, slots=True)
class Surroundings:
    """The environment variables, read once, and the places they decide."""

    variables: Mapping[str, str]
    user: int

    @classmethod
    def read(cls) -> "Surroundings":
        return cls(dict(os.environ), os.getuid())

    @property
    def cache_directory(self) -> Path:
        """Where fetched models are kept."""
        if own := self.variables.get("PONTIL_CACHE"):
            return Path(own)
        return Path(self.variables.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "pontil"

    @property
    def run_base(self) -> Path:
        """The folder of all this user's run directories."""
        runtime = self.variables.get("XDG_RUNTIME_DIR")
        if runtime and os.access(runtime, os.W_OK | os.X_OK):
            return Path(runtime) / "pontil"
        return Path("/tmp") / f"pontil-{self.user}"

    @property
    def visible_gpus(self) -> str | None:
        return self.variables.get("CUDA_VISIBLE_DEVICES")

    def for_child(self, threads: int | None) -> dict[str, str]:
        """A child's environment. What libraries read once must stand there before the child loads them: thread counts,
        and for whoever computes with them, that memory given back is kept for the next step."""
        computing = {} if threads is None else {"OMP_NUM_THREADS": str(threads), "MKL_NUM_THREADS": str(threads)}
        kept = {} if threads is None else MEMORY_IS_KEPT
        return {**kept, **self.variables, **computing, "PYTHONUNBUFFERED": "1"}
