# SPDX-License-Identifier: Apache-2.0
"""The images of a request that are at addresses on the network: fetched a few at a time, within the room for what
requests have waiting."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from pontil.http.fields.picture import LinkedPicture, Picture, check_picture
from pontil.http.fields.recording import MediaPart
from pontil.http.intake.caller_turns import CALLER, RETRY_SECONDS, CallerTurns
from pontil.runtime.config.web_address import WebAddress
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.stages.media.fetch_failed import FetchFailed
from pontil.runtime.stages.media.web_fetcher import WebFetcher

# Images that are fetched at once, and that may wait to be, in a proxy; and the longest wait in seconds.
AT_ONCE, MOST_WAITING, LONGEST_WAIT = 8, 256, 15.0
# Bytes of all images of a request that are fetched.
MOST_FETCHED = 32 << 20
FAILED = "invalid_image_url"


class HeldBytes:
    """The bytes that one request holds of a room, until all of them are given back."""

    def __init__(self, room: SharedRoom) -> None:
        self.room, self.caller, self.size = room, CALLER.get(), 0
        self.is_over = False

    def take(self, size: int) -> None:
        """Hold more bytes. Raises RequestError for more than any request may hold, and Unavailable where others hold
        too much."""
        if self.is_over:
            # A fetch that ends, of a request that did not wait for it.
            return
        if self.size + size > MOST_FETCHED:
            says = f"images at addresses on the network have more than {MOST_FETCHED} bytes together: send fewer"
            raise RequestError(says, param="messages", code=FAILED)
        if not self.room.take(self.caller, size):
            raise Unavailable("too many images are being fetched: try again in a moment", RETRY_SECONDS)
        self.size += size

    def give_back(self) -> None:
        self.room.give_back(self.caller, self.size)
        self.size, self.is_over = 0, True


class LinkedPictures:
    """The way to images on the network, in the room of what is `held` for all requests."""

    def __init__(self, fetcher: WebFetcher, held: SharedRoom) -> None:
        self.fetcher, self.held = fetcher, held
        self.turns = CallerTurns(MOST_WAITING, "images that are fetched", AT_ONCE)

    def check(self, picture: LinkedPicture) -> None:
        """Raise RequestError for an image at a host from which nothing is fetched."""
        if not self.fetcher.allowed:
            says = f"{picture.place} is an address on the network, and this server fetches nothing for its clients: a "
            says = f"{says}request could name hosts that only the server reaches; send the image itself in a data URL"
            raise RequestError(says, param=picture.place, code="unsupported_parameter")
        try:
            self.fetcher.check(picture.address)
        except FetchFailed as failed:
            raise refused(picture, failed) from None

    @asynccontextmanager
    async def fetched(self, media: Sequence[MediaPart]) -> AsyncIterator[dict[LinkedPicture, Picture]]:
        """Hold the images that are linked, each address fetched once. Raises RequestError, naming the place, and
        Unavailable."""
        linked = [medium for medium in media if isinstance(medium, LinkedPicture)]
        held, tasks = HeldBytes(self.held), dict[WebAddress, asyncio.Future[bytes]]()
        for one in linked:
            if one.address not in tasks:
                tasks[one.address] = asyncio.ensure_future(self.fetch(one, held))
        try:
            await asyncio.gather(*tasks.values())
            yield {one: Picture(tasks[one.address].result(), one.place) for one in linked}
        finally:
            try:
                await ended(tasks)
            finally:
                held.give_back()

    async def fetch(self, picture: LinkedPicture, held: HeldBytes) -> bytes:
        async with self.turns.turn(1, LONGEST_WAIT):
            try:
                data = await self.fetcher.fetch(picture.address, held.take)
            except FetchFailed as failed:
                raise refused(picture, failed) from None
        check_picture(data, picture.place)
        return data


def refused(picture: LinkedPicture, failed: FetchFailed) -> RequestError:
    return RequestError(f"{picture.place} {failed}", param=picture.place, code=FAILED)


async def ended(tasks: dict[WebAddress, "asyncio.Future[bytes]"]) -> None:
    """Cancel what goes on, so that it holds nothing any more."""
    for task in tasks.values():
        task.cancel()
    if tasks:
        await asyncio.wait(tasks.values())
