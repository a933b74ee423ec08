# SPDX-License-Identifier: Apache-2.0
"""Device lists such as `0,cuda:1,2+3,cpu:0-3,cpu*2`: an item for each worker, with a device for each of its ranks."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from pontil.runtime.foundation.number_ranges import spell

MAX_WORKERS = 1024
# Ranks of one worker. A model's heads decide how many are possible.
MAX_RANKS = 64
FORMS = "0, cuda:0, 0+1, cpu, cpu:0-3, cpu:0+cpu:1 or cpu*2"
# Separates the devices of one worker, in a list, in a plan and wherever a plan is shown.
JOIN = "+"


@dataclass(frozen=True, slots=True)
class RankDevice:
    """The requested device of one rank: a GPU, the named cores, or (neither given) a share of the free cores."""

    gpu: int | None = None
    cores: tuple[int, ...] | None = None

    @property
    def plain(self) -> bool:
        return self.gpu is None and self.cores is None

    def __str__(self) -> str:
        if self.gpu is not None:
            return str(self.gpu)
        return "cpu" if self.cores is None else f"cpu:{spell(self.cores)}"


@dataclass(frozen=True, slots=True)
class DeviceItem:
    """The requested devices of one worker, one for each of its ranks: GPUs, named cores, or shares of the free
    cores."""

    ranks: tuple[RankDevice, ...] = (RankDevice(),)

    @property
    def gpus(self) -> tuple[int, ...]:
        return tuple(rank.gpu for rank in self.ranks if rank.gpu is not None)

    @property
    def cores(self) -> tuple[int, ...]:
        """The named cores of all ranks; a core that two ranks share is there twice."""
        return tuple(core for rank in self.ranks for core in rank.cores or ())

    @property
    def plain(self) -> int:
        """The number of ranks that take a share of the free cores."""
        return sum(rank.plain for rank in self.ranks)

    def __str__(self) -> str:
        """The item as written in a device list."""
        return JOIN.join(map(str, self.ranks))


def parse_list(text: str) -> tuple[DeviceItem, ...]:
    """Parse a list with one item per worker; `none` means no worker. Raises ValueError with words that follow a flag's
    name."""
    if text.strip() == "none":
        return ()
    items = tuple(item for part in text.split(",") for item in parse_item(part.strip()))
    if len(items) > MAX_WORKERS:
        raise ValueError(f"may name at most {MAX_WORKERS} workers")
    return items


def parse_item(text: str) -> tuple[DeviceItem, ...]:
    if many := re.fullmatch(r"cpu\*(\d{1,4})", text, re.ASCII):
        return (DeviceItem(),) * at_least_one(int(many[1]))
    parts = text.split(JOIN)
    if len(parts) > MAX_RANKS:
        raise ValueError(f"may join at most {MAX_RANKS} devices in one worker")
    ranks = tuple(map(parse_rank, parts))
    check_alike(ranks)
    return (DeviceItem(ranks),)


def parse_rank(text: str) -> RankDevice:
    if gpu := re.fullmatch(r"(?:cuda:)?(\d{1,4})", text, re.ASCII):
        return RankDevice(gpu=int(gpu[1]))
    if match := re.fullmatch(r"cpu:(\d{1,5})(?:-(\d{1,5}))?", text, re.ASCII):
        return RankDevice(cores=core_range(int(match[1]), int(match[2] or match[1])))
    if text == "cpu":
        return RankDevice()
    if text.startswith("cpu*"):
        raise ValueError("may not join cpu*N with +: name the device of each rank, such as cpu+cpu")
    raise ValueError(f"must be a comma list of items like {FORMS}")


def check_alike(ranks: Sequence[RankDevice]) -> None:
    """Check that the ranks of one worker have devices of one kind, and each GPU once."""
    gpus = [rank.gpu for rank in ranks if rank.gpu is not None]
    if gpus and len(gpus) < len(ranks):
        raise ValueError(
            "may not join cores and GPUs in one worker (cpu:N is a rank on a core, cuda:N one on a GPU): give all "
            "ranks the same kind"
        )
    if (twice := repeated(gpus)) is not None:
        raise ValueError(f"may name GPU {twice} once in a worker")
    if 0 < sum(rank.plain for rank in ranks) < len(ranks):
        raise ValueError("must name the cores of every rank of a worker, or of none")


def at_least_one(count: int) -> int:
    if not count:
        raise ValueError("must ask for at least one worker in cpu*N")
    return count


def core_range(first: int, last: int) -> tuple[int, ...]:
    if last < first:
        raise ValueError(f"must name cores upwards (cpu:{last}-{first})")
    return tuple(range(first, last + 1))


def repeated(values: Sequence[int]) -> int | None:
    """Return the first value that is there twice."""
    return next((value for place, value in enumerate(values) if value in values[:place]), None)
