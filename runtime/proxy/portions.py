# SPDX-License-Identifier: Apache-2.0
"""Requests for many works at once, which are admitted while the event loop has its turns."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack

from pontil.runtime.proxy.fleet.registry_snapshot import RegistrySnapshot
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.proxy.requests.answer import WholeAnswer
from pontil.runtime.proxy.requests.request import Work
from pontil.runtime.proxy.requests.stream import Stream, joined
from pontil.runtime.proxy.requests.ticket import Ticket

# Requests that are admitted in one turn of the event loop.
PORTION = 64


async def submit_in_portions(proxy: Proxy, ticket: Ticket, works: Sequence[Work], snapshot: RegistrySnapshot) -> Stream:
    """Do what `Proxy.submit` does, for many works: the event loop has its turns in between."""
    proxy.admissions.by_group[works[0].group].check(ticket, works, snapshot.workers)
    with ExitStack() as broken:
        streams, answer = [], WholeAnswer(len(works))
        broken.callback(answer.fail)
        for first in range(0, len(works), PORTION):
            stream = proxy.submit(ticket, *works[first : first + PORTION], snapshot=snapshot)
            stream.expect_whole(answer)
            broken.callback(stream.cancel)
            streams.append(stream)
            await asyncio.sleep(0)
        broken.pop_all()
    return joined(streams)
