# SPDX-License-Identifier: Apache-2.0
"""A device's profile of one model: times that were measured, and the file that carries them to another machine."""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, dataclass, fields, replace
from typing import Any, get_type_hints

from pontil.runtime.errors import PontilError

FORMAT = 1
# The names of the format and of the digest in the file, and the most bytes of one.
KIND, DIGEST = "pontil_profile", "digest"
MOST_BYTES = 1 << 22
MOST_POINTS = 10_000
# The most times as long that a step takes beside others, or without lent cores.
MOST_TIMES = 1000
# The most that the times of steps of a kind vary.
MOST_VARIATION = 1.0
MADE_BY = "`pontil profile` makes one"

# Numbers that belong together: sizes first, milliseconds last.
Points = tuple[tuple[float, ...], ...]


class ProfileError(PontilError):
    """A file that is no profile, or one that cannot be used. The message is one sentence without its full stop."""


@dataclass(frozen=True, slots=True)
class ProfiledModel:
    """The model, and the device that computed it: `cores` of a processor, or one GPU. A worker of several `ranks` has
    as many of them, each with a part of the model."""

    model: str
    fingerprint: str
    version: str
    processor: str
    device: str
    cores: int
    kernels: str
    dtype: str
    kv_cache_dtype: str
    ranks: int = 1


@dataclass(frozen=True, slots=True)
class WorkerSizes:
    """The sizes of a worker: `blocks` of `block_tokens` tokens and, in each rank, `block_bytes`, so many bytes of
    weights, and what it takes at once: sequences, tokens of a step, and prompt tokens beside generated ones (0: as
    many)."""

    max_model_len: int
    block_tokens: int
    block_bytes: int
    blocks: int
    weight_bytes: int
    seats: int
    step_tokens: int
    interleaved_tokens: int


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Times as they were measured. Of steps: rows that decode, positions that they read, prompt tokens, positions that
    these read, milliseconds. Of pulls: blocks, milliseconds. Steps that decode only, and those with prompt tokens, vary
    so much from one to the next of their kind: the standard deviation of the logarithm."""

    steps: Points
    pulls: Points
    decode_variation: float = 0.0
    prompt_variation: float = 0.0


@dataclass(frozen=True, slots=True)
class HostTimes:
    """Milliseconds of a host's own work: of a worker for a turn, for each row of it and each token of a prompt,
    besides the step; of a proxy for a request, for an event of a stream, for a token of a prompt, and for a turn in
    which events come; of `pontil bench` for the same. And the seconds of a launch's start, and from the death of a
    worker until the next one serves in its place: those of a start where none died."""

    worker_turn: float
    worker_row: float
    proxy_request: float
    proxy_event: float
    start_seconds: float
    worker_token: float = 0.0
    proxy_token: float = 0.0
    client_request: float = 0.0
    client_event: float = 0.0
    client_token: float = 0.0
    proxy_turn: float = 0.0
    client_turn: float = 0.0
    restart_seconds: float = 0.0

    @property
    def back_after(self) -> float:
        return self.restart_seconds or self.start_seconds


# The part of a core's time that a step has beside another one on it.
HALF = 0.5


@dataclass(frozen=True, slots=True)
class CompanyTimes:
    """Factors by which a step takes longer while another core of the machine computes: one that decodes and one with
    prompt tokens, each beside one that decodes, one with prompt tokens, and other programs. And those on the processor
    time of a step whose own core another step has by turns."""

    decode_decode: float = 1.0
    decode_prompt: float = 1.0
    decode_host: float = 1.0
    prompt_decode: float = 1.0
    prompt_prompt: float = 1.0
    prompt_host: float = 1.0
    own_decode_decode: float = 1.0
    own_decode_prompt: float = 1.0
    own_prompt_decode: float = 1.0
    own_prompt_prompt: float = 1.0

    def lost(self) -> dict[tuple[str, str, bool], float]:
        """Return the part of its time that a step of one kind loses beside another, on another core or on its own."""
        found = {}
        for name, factor in asdict(self).items():
            *own, kind, other = name.split("_")
            found[kind, other, bool(own)] = 1.0 - (HALF if own else 1.0) / max(1.0, factor)
        return found


@dataclass(frozen=True, slots=True)
class LendingTimes:
    """Factors on the time of steps while another worker lends as many cores as theirs: rows that decode, prompt tokens,
    factor. None was measured where there are none."""

    factors: Points = ()


@dataclass(frozen=True, slots=True)
class DiskTimes:
    """Milliseconds of a KV block of a tier on a disk with its digest: written, read again while the system's memory has
    it, and read from the disk itself. None was measured where all are 0."""

    write: float = 0.0
    read: float = 0.0
    cold_read: float = 0.0


@dataclass(frozen=True, slots=True)
class DraftTimes:
    """The `model` that guesses for the profile's: bytes of its blocks and of its weights, the part of the other's that
    its weights are; of its steps that guess the sequences, the positions before the rows, milliseconds; of those that
    only read a text the rows and milliseconds. None was measured where it has no name."""

    model: str = ""
    block_bytes: int = 0
    weight_bytes: int = 0
    ratio: float = 1.0
    guesses: Points = ()
    reads: Points = ()


PARTS = {
    "about": ProfiledModel, "sizes": WorkerSizes, "times": StepTimes, "host": HostTimes, "company": CompanyTimes,
    "disk": DiskTimes, "draft": DraftTimes, "lending": LendingTimes,
}  # fmt: skip
WIDTHS = {"steps": 5, "pulls": 2, "guesses": 3, "reads": 2, "factors": 3}


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """The profile of one model on one device."""

    about: ProfiledModel
    sizes: WorkerSizes
    times: StepTimes
    host: HostTimes
    company: CompanyTimes = CompanyTimes()
    disk: DiskTimes = DiskTimes()
    draft: DraftTimes = DraftTimes()
    lending: LendingTimes = LendingTimes()

    def text(self) -> str:
        """Return the file, which `read_profile` reads."""
        measured = {field.name for field in fields(self) if getattr(self, field.name) != field.default}
        told = {KIND: FORMAT, **{name: part for name, part in asdict(self).items() if name in measured}}
        return json.dumps({**told, DIGEST: digest_of(told)}, indent=1) + "\n"

    def slower(self, times: float) -> "DeviceProfile":
        """Return the profile of a device that needs so many times as long for everything."""
        host, disk = HostTimes(**multiplied(self.host, times)), DiskTimes(**multiplied(self.disk, times))
        steps, pulls = slower_points(self.times.steps, times), slower_points(self.times.pulls, times)
        made = replace(self.times, steps=steps, pulls=pulls)
        guesses, reads = slower_points(self.draft.guesses, times), slower_points(self.draft.reads, times)
        draft = replace(self.draft, guesses=guesses, reads=reads)
        return replace(self, times=made, host=host, disk=disk, draft=draft)


def multiplied(part: HostTimes | DiskTimes, times: float) -> dict[str, float]:
    return {field.name: getattr(part, field.name) * times for field in fields(part)}


def slower_points(points: Points, times: float) -> Points:
    return tuple((*sizes, milliseconds * times) for *sizes, milliseconds in points)


def digest_of(told: Mapping[str, Any]) -> str:
    """Return the digest of all but the digest itself."""
    rest = {name: value for name, value in told.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def read_profile(data: bytes) -> DeviceProfile:
    """Read the content of a profile's file. Raises ProfileError."""
    told = json_object(data)
    if told.get(KIND) != FORMAT:
        raise ProfileError(f"it is no profile of format {FORMAT}: {MADE_BY}")
    if told.get(DIGEST) != digest_of(told):
        raise ProfileError(f"it was changed since it was measured: its digest is another one, and {MADE_BY}")
    parts = {name: part_of(kind, told.get(name, {}), name) for name, kind in PARTS.items()}
    made = DeviceProfile(**parts)
    check_sizes(made)
    return made


def json_object(data: bytes) -> dict[str, Any]:
    if len(data) > MOST_BYTES:
        raise ProfileError(f"it is larger than any profile: {MADE_BY}")
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        raise ProfileError(f"it is no JSON: {MADE_BY}") from None
    if not isinstance(told, dict):
        raise ProfileError(f"it is no JSON object: {MADE_BY}")
    return told


def part_of(kind: type[Any], told: Any, name: str) -> Any:
    """Return a part of a profile from its JSON object. Earlier versions lack what has a default. Raises
    ProfileError."""
    kinds = get_type_hints(kind)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    if not isinstance(told, dict) or not needed <= told.keys() <= kinds.keys():
        raise ProfileError(f'its part "{name}" has not the fields of this version: measure it again')
    return kind(**{field: value_of(kinds[field], value, f"{name}.{field}") for field, value in told.items()})


def value_of(kind: Any, value: Any, name: str) -> Any:
    """Return a value of a part, which is a text, a number, or points."""
    if kind is str and isinstance(value, str):
        return value
    if kind is int and is_number(value) and isinstance(value, int):
        return value
    if kind is float and is_number(value):
        return float(value)
    if kind == Points:
        return points_of(value, name)
    raise ProfileError(f"{name} is none of the values that it can have: {MADE_BY}")


def points_of(value: Any, name: str) -> Points:
    width = WIDTHS[name.partition(".")[2]]
    proper = isinstance(value, list) and 0 < len(value) <= MOST_POINTS
    if not proper or not all(isinstance(one, list) and len(one) == width and all(map(is_number, one)) for one in value):
        raise ProfileError(f"{name} is no list of measured points, each of {width} numbers: {MADE_BY}")
    return tuple(tuple(map(float, one)) for one in value)


def is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def check_sizes(profile: DeviceProfile) -> None:
    """Raise ProfileError for sizes of which no worker can be made."""
    sizes = profile.sizes
    about = profile.about
    if min(sizes.max_model_len, sizes.blocks - 1, sizes.seats, sizes.step_tokens, about.cores, about.ranks) < 1:
        raise ProfileError(f"its sizes are those of no worker: {MADE_BY}")
    if max(profile.times.decode_variation, profile.times.prompt_variation) > MOST_VARIATION:
        raise ProfileError(f"its steps of a kind vary by more than {MOST_VARIATION:g}: {MADE_BY}")
    if any(not 1.0 / MOST_TIMES <= factor <= 1.0 for *_, factor in profile.lending.factors):
        raise ProfileError(f"its factors of lent cores are not above 0 and up to 1: {MADE_BY}")
    if max(asdict(profile.company).values()) > MOST_TIMES:
        raise ProfileError(f"its steps beside others take more than {MOST_TIMES} times as long: {MADE_BY}")
    if profile.draft.model and not (profile.draft.guesses and profile.draft.reads):
        raise ProfileError(f"it has no steps of {profile.draft.model}, which guesses: {MADE_BY}")
