# SPDX-License-Identifier: Apache-2.0
"""Images on the network are fetched a few at a time, hold bounded room, and leave nothing when their client goes."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from picture_origin import LOOPBACK, PNG, KnownNames, PictureOrigin, endless, file, on_each_loop, silent

from pontil.http.fields.picture import LinkedPicture, Picture
from pontil.http.fields.recording import Recording
from pontil.http.intake.caller_turns import CALLER
from pontil.http.openai.sound import linked_pictures
from pontil.http.openai.sound.linked_pictures import AT_ONCE, MOST_WAITING, LinkedPictures
from pontil.runtime.config.web_address import MediaHosts, web_address
from pontil.runtime.errors import RequestError, Unavailable
from pontil.runtime.proxy.requests.shared_room import SharedRoom
from pontil.runtime.stages.media.web_fetcher import WebFetcher

ROOM = 1 << 20


class Pictures:
    """Linked pictures of one origin, and the room that they hold."""

    def __init__(self, origin: PictureOrigin) -> None:
        self.origin, self.room = origin, SharedRoom(ROOM)
        allowed = MediaHosts([f"{LOOPBACK}:{origin.port}"])
        self.linked = LinkedPictures(WebFetcher(allowed, network=KnownNames({})), self.room)

    def at(self, path: str, place: str = "") -> LinkedPicture:
        return LinkedPicture(web_address(self.origin.url + path), place or f"messages[0].{path}")

    async def fetched(self, *paths: str) -> list[bytes]:
        pictures = [self.at(path) for path in paths]
        async with self.linked.fetched(pictures) as found:
            sizes = {one.address: len(found[one].data) for one in found}
            assert self.room.held[CALLER.get()] == sum(sizes.values())
            return [found[one].data for one in pictures]

    @property
    def is_idle(self) -> bool:
        return not (self.room.total or self.linked.turns.taken or self.linked.turns.room.total)


def with_pictures(script: Callable[[Pictures], Awaitable[None]]) -> None:
    async def run() -> None:
        async with PictureOrigin().listening() as origin:
            pictures = Pictures(origin)
            await script(pictures)
            assert pictures.is_idle
            while origin.open:
                await asyncio.sleep(0)

    on_each_loop(run)


def test_each_address_of_a_request_is_fetched_once_and_told_by_its_places() -> None:
    async def script(pictures: Pictures) -> None:
        pictures.origin.replies |= {"/a": file(PNG), "/b": file(PNG + b"b")}
        assert await pictures.fetched("/a", "/b", "/a") == [PNG, PNG + b"b", PNG]
        assert sorted(pictures.origin.paths) == ["/a", "/b"]
        one, other = pictures.at("/a", "one"), pictures.at("/a", "other")
        async with pictures.linked.fetched([one, Recording(b"", "r"), Picture(b"", "p"), other]) as found:
            assert found == {one: Picture(PNG, "one"), other: Picture(PNG, "other")}
        async with pictures.linked.fetched([]) as found:
            assert found == {}

    with_pictures(script)


@pytest.mark.parametrize(
    ("body", "code", "says"),
    [
        (b"<html>", "invalid_image", "is no PNG or JPEG file"),
        (b"", "invalid_image", "is no PNG or JPEG file"),
        (None, "invalid_image_url", "was answered with the status 404"),
    ],
)
def test_what_is_no_image_is_refused_by_its_place(body: bytes | None, code: str, says: str) -> None:
    async def script(pictures: Pictures) -> None:
        pictures.origin.replies["/a"] = file()
        if body is not None:
            pictures.origin.replies["/b?secret"] = file(body)
        with pytest.raises(RequestError) as refused:
            await pictures.fetched("/a", "/b?secret")
        assert (refused.value.status, refused.value.code, refused.value.param) == (400, code, "messages[0]./b?secret")
        assert str(refused.value).startswith(f"messages[0]./b?secret {says}")

    with_pictures(script)


def test_few_are_fetched_at_once_and_callers_take_turns() -> None:
    """A caller with one image does not wait for all of another's."""

    async def script(pictures: Pictures) -> None:
        go_on, order = asyncio.Event(), list[str]()

        async def waiting(writer: asyncio.StreamWriter) -> None:
            await go_on.wait()
            writer.write(file())

        many = [f"/{index}" for index in range(3 * AT_ONCE)]
        pictures.origin.replies |= dict.fromkeys([*many, "/ann"], waiting)

        async def fetch(caller: str, *paths: str) -> None:
            CALLER.set(caller)
            await pictures.fetched(*paths)
            order.append(caller)

        greedy = asyncio.ensure_future(fetch("greedy", *many))
        while pictures.origin.open < AT_ONCE:
            await asyncio.sleep(0)
        ann, turns = asyncio.ensure_future(fetch("ann", "/ann")), pictures.linked.turns
        while len(turns.waiting) < 2 * AT_ONCE + 1:
            await asyncio.sleep(0)
        assert turns.taken == AT_ONCE == pictures.origin.open
        go_on.set()
        await asyncio.gather(greedy, ann)
        assert order == ["ann", "greedy"] and pictures.origin.paths.index("/ann") < 2 * AT_ONCE

    with_pictures(script)


def test_a_queue_that_is_full_says_when_to_come_again() -> None:
    async def script(pictures: Pictures) -> None:
        paths = [f"/{index}" for index in range(AT_ONCE + MOST_WAITING)]
        pictures.origin.replies |= dict.fromkeys([*paths, "/more"], silent)
        waiting = asyncio.ensure_future(pictures.fetched(*paths))
        while len(pictures.linked.turns.waiting) < MOST_WAITING:
            await asyncio.sleep(0)
        with pytest.raises(Unavailable, match="too many images that are fetched wait") as refused:
            await pictures.fetched("/more")
        assert refused.value.retry_after
        waiting.cancel()
        await asyncio.wait([waiting])

    with_pictures(script)


def test_what_is_fetched_holds_the_room_of_all_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    async def script(pictures: Pictures) -> None:
        pictures.origin.replies |= {"/large": file(PNG + bytes(ROOM // 2)), "/small": file(PNG + bytes(2000))}
        pictures.room.hold("another", ROOM // 2 + 1000)
        with pytest.raises(Unavailable, match="too many images are being fetched"):
            await pictures.fetched("/large")
        pictures.room.give_back("another", ROOM // 2 + 1000)
        assert pictures.is_idle and len((await pictures.fetched("/large"))[0]) > ROOM // 2
        monkeypatch.setattr(linked_pictures, "MOST_FETCHED", ROOM // 2 + 1000)
        with pytest.raises(RequestError, match="more than 525288 bytes together"):
            await pictures.fetched("/large", "/small")

    with_pictures(script)


@pytest.mark.parametrize("turns", range(4))
def test_one_that_is_cancelled_again_while_it_ends_holds_nothing(turns: int) -> None:
    async def script(pictures: Pictures) -> None:
        pictures.origin.replies["/a"] = endless
        task = asyncio.ensure_future(pictures.fetched("/a"))
        while not pictures.room.total:
            await asyncio.sleep(0)
        for _ in range(2):
            task.cancel()
            for _ in range(turns):
                await asyncio.sleep(0)
        await asyncio.wait([task])
        while pictures.linked.turns.taken:
            await asyncio.sleep(0)
        assert task.cancelled()

    with_pictures(script)


@pytest.mark.parametrize("fault", ["cancelled", "refused"])
def test_one_that_fails_or_leaves_ends_all_of_its_request(fault: str) -> None:
    async def script(pictures: Pictures) -> None:
        pictures.origin.replies |= dict.fromkeys([f"/{index}" for index in range(AT_ONCE + 4)], silent)
        asked = [f"/{index}" for index in range(AT_ONCE + 4)]
        if fault == "refused":
            asked.insert(0, "/not-there")
        task = asyncio.ensure_future(pictures.fetched(*asked))
        if fault == "cancelled":
            while pictures.origin.open < AT_ONCE:
                await asyncio.sleep(0)
            task.cancel()
        await asyncio.wait([task])
        assert task.cancelled() if fault == "cancelled" else "404" in str(task.exception())
        assert pictures.is_idle

    with_pictures(script)


def test_nothing_is_fetched_without_a_list() -> None:
    linked = LinkedPictures(WebFetcher(MediaHosts([])), SharedRoom(ROOM))
    picture = LinkedPicture(web_address("http://images.example/a?secret"), "messages[0]")
    with pytest.raises(RequestError, match="this server fetches nothing") as refused:
        linked.check(picture)
    assert (refused.value.param, refused.value.code) == ("messages[0]", "unsupported_parameter")
    linked = LinkedPictures(WebFetcher(MediaHosts(["other.example"])), SharedRoom(ROOM))
    with pytest.raises(RequestError, match="the host 'images.example', from which") as refused:
        linked.check(picture)
    assert refused.value.code == "invalid_image_url" and "secret" not in str(refused.value)
