# SPDX-License-Identifier: Apache-2.0
"""The metrics of several proxies on one page: a scrape reaches any one of them, and has to find all.

Each proxy leaves its page in the launch's folder every two seconds, as long as somebody scrapes any of them: to make
one holds up the event loop, and with it all answers. The proxy that is asked shows its own as it is now and the others
as they were left, each sample with the label `proxy`. Programs that pick a server by vLLM's names look at one sample:
of those there is one for all proxies.
"""

import asyncio
import math
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

from pontil.runtime.foundation.file_age import age, stamp

SUFFIX = ".metrics"
# The file that a scrape stamps; the seconds after it for which pages are left, longer than from one scrape to the next;
# and those for which the first one waits for pages: somewhat longer than a proxy looks at the others in.
ASKED, ASKED_FOR, FIRST_WAIT = "metrics-asked", 300.0, 0.75
# Seconds from one page that is left to the next.
EVERY = 2.0
# Seconds after which a page is that of a proxy which is gone, or stands still.
STALE = 10.0
# Families of which there is one sample for all proxies: of requests the sum, of all others the largest, since workers
# tell every proxy the same.
PICKED, OF_REQUESTS = b"vllm:", b"vllm:num_requests_"
SAMPLE = re.compile(rb"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+.*)")


class MetricsPages:
    """The pages of all proxies in a folder. `render` makes this one's, in the event loop, whose state it reads. Files
    are read, written and merged in a thread, for one scrape at a time: that takes the longer the more workers and
    proxies there are."""

    def __init__(self, folder: Path, name: str, render: Callable[[], bytes]) -> None:
        self.folder, self.name, self.render = folder, name, render
        self.turn = asyncio.Lock()
        self.left_at, self.asked = -math.inf, folder / ASKED

    async def look(self) -> None:
        """Leave this proxy's page for the others, if it is time for one and they are asked for theirs."""
        now = time.monotonic()
        if now - self.left_at >= EVERY and self.is_asked:
            self.left_at = now
            await asyncio.to_thread(self.write, self.render())

    @property
    def is_asked(self) -> bool:
        """Return whether somebody has scraped a proxy lately. Reads the time of a file."""
        with suppress(OSError):
            return age(self.asked) <= ASKED_FOR
        return False

    def ask(self) -> bool:
        """Have all proxies leave their pages for a while. Return whether they did so already."""
        before = self.is_asked
        with suppress(OSError):
            self.asked.touch()
            stamp(self.asked)
        return before

    def write(self, page: bytes) -> None:
        """Write a page. One that cannot be written is missing on those of the others."""
        fresh = self.folder / f"{self.name}{SUFFIX}.new"
        with suppress(OSError):
            fresh.write_bytes(page)
            stamp(fresh)
            fresh.replace(self.folder / f"{self.name}{SUFFIX}")

    async def whole(self) -> bytes:
        """Return the page with the samples of all proxies."""
        async with self.turn:
            if not await asyncio.to_thread(self.ask):
                await asyncio.sleep(FIRST_WAIT)
            return await asyncio.to_thread(self.beside, self.render())

    def beside(self, page: bytes) -> bytes:
        """Return this page with the samples of the other proxies."""
        pages = {self.name: page}
        for path in sorted(self.folder.glob(f"*{SUFFIX}")):
            if path.stem not in pages:
                with suppress(OSError):
                    if age(path) <= STALE:
                        pages[path.stem] = path.read_bytes()
        return merged(pages)

    def close(self) -> None:
        (self.folder / f"{self.name}{SUFFIX}").unlink(missing_ok=True)


def merged(pages: Mapping[str, bytes]) -> bytes:
    """Return one page in Prometheus' text format: each family once, with the samples of every page."""
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    picked_samples: dict[bytes, dict[bytes, float]] = {}
    for name, page in sorted(pages.items()):
        label, family = b'proxy="%b"' % name.encode(), b""
        for line in page.splitlines():
            if line.startswith(b"# "):
                word, _, text = line[2:].partition(b" ")
                family = text.split(b" ", 1)[0] if word in (b"HELP", b"TYPE") else family
                if word in (b"HELP", b"TYPE"):
                    head_lines = heads.setdefault(family, [])
                    head_lines += [] if any(head.startswith(b"# %b " % word) for head in head_lines) else [line]
            elif line.startswith(PICKED):
                sample, _, value = line.rpartition(b" ")
                family_values = picked_samples.setdefault(family, {})
                before, number = family_values.get(sample, 0.0), float(value)
                family_values[sample] = before + number if family.startswith(OF_REQUESTS) else max(before, number)
            elif match := SAMPLE.fullmatch(line):
                labels = label if not match[2] else label + b"," + match[2]
                samples.setdefault(family, []).append(b"%b{%b} %b" % (match[1], labels, match[3]))
    for family, values in picked_samples.items():
        samples[family] = [b"%b %b" % (sample, repr(value).encode()) for sample, value in values.items()]
    lines = [line for family, head in heads.items() for line in (*head, *samples.get(family, ()))]
    return b"\n".join(lines) + b"\n"
