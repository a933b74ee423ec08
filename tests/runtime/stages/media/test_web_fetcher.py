# SPDX-License-Identifier: Apache-2.0
"""Files are fetched from hosts that were named, whatever these and the names' resolver do."""

import asyncio
import gzip
import re
from collections.abc import Awaitable, Callable, Sequence

import pytest
from picture_origin import (
    LOOPBACK,
    PNG,
    KnownNames,
    PictureOrigin,
    Script,
    endless,
    file,
    moved,
    on_each_loop,
    reply,
    silent,
)

from pontil.runtime.config.web_address import MediaHosts, web_address
from pontil.runtime.stages.media.fetch_failed import FetchFailed
from pontil.runtime.stages.media.web_fetcher import NO_PRIVATE, FetchLimits, WebFetcher

LIMITS = FetchLimits(total=30.0, first_byte=20.0, step=20.0, size=4096)
NAME = "images.example"


def with_origin(script: Callable[[PictureOrigin], Awaitable[None]]) -> None:
    async def run() -> None:
        async with PictureOrigin().listening() as origin:
            await script(origin)

    on_each_loop(run)


def fetcher(
    origin: PictureOrigin,
    names: dict[str, list[str]] | None = None,
    more: Sequence[str] = (),
    limits: FetchLimits = LIMITS,
) -> WebFetcher:
    allowed = MediaHosts([f"{LOOPBACK}:{origin.port}", f"{NAME}:{origin.port}", *more])
    return WebFetcher(allowed, limits, KnownNames({NAME: [LOOPBACK]} if names is None else names))


async def fetch(of: WebFetcher, url: str) -> bytes:
    """Fetch, and check that all bytes were taken as they came."""
    sizes = list[int]()
    found = await of.fetch(web_address(url), sizes.append)
    assert sum(sizes) == len(found)
    return found


async def refusal(of: WebFetcher, url: str) -> str:
    with pytest.raises(FetchFailed) as failed:
        await of.fetch(web_address(url), lambda size: None)
    assert "secret" not in str(failed.value)
    return str(failed.value)


def test_a_file_is_asked_for_plainly_under_its_hosts_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    async def script(origin: PictureOrigin) -> None:
        origin.replies["/a.png?sign=x%20y"] = file()
        assert await fetch(fetcher(origin), f"http://{NAME}:{origin.port}/a.png?sign=x%20y#part") == PNG
        assert origin.asked == [
            f"GET /a.png?sign=x%20y HTTP/1.1\r\nHost: {NAME}:{origin.port}\r\nUser-Agent: pontil\r\n"
            "Accept: image/png, image/jpeg\r\nAccept-Encoding: identity\r\nConnection: close\r\n\r\n"
        ]

    with_origin(script)


@pytest.mark.parametrize(
    "answer",
    [
        file(),
        reply(body=PNG),
        reply(body=b"8\r\n" + PNG[:8] + b"\r\n40;extension=5\r\n" + PNG[8:] + b"\r\n0\r\nTrailer: 1\r\n\r\n",
              Transfer_Encoding="chunked"),
        b"HTTP/1.0 200 Yes\r\n\r\n" + PNG,
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + file(),
        file() + b"HTTP/1.1 404 No\r\n\r\n",
        reply(body=PNG, Content_Encoding="identity", Content_Length=str(len(PNG))),
    ],
    ids=["length", "until the end", "chunks", "old", "told before", "more behind", "identity"],
)  # fmt: skip
def test_all_ways_of_http_to_say_where_a_file_ends(answer: bytes) -> None:
    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = answer
        assert await fetch(fetcher(origin), origin.url) == PNG

    with_origin(script)


async def headers_forever(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while not writer.is_closing():
        writer.write(b"X-Header: " + bytes(b"a" * 1000) + b"\r\n")
        await writer.drain()


async def hints_forever(writer: asyncio.StreamWriter) -> None:
    while not writer.is_closing():
        writer.write(b"HTTP/1.1 103 Early Hints\r\n\r\n" * 100)
        await writer.drain()


async def one_header_forever(writer: asyncio.StreamWriter) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\nX-Header: ")
    while not writer.is_closing():
        writer.write(bytes(b"a" * 1000))
        await writer.drain()


async def trailers_forever(writer: asyncio.StreamWriter) -> None:
    writer.write(reply(body=b"1\r\na\r\n0\r\n", Transfer_Encoding="chunked"))
    while not writer.is_closing():
        writer.write(b"X-Trailer: " + bytes(b"a" * 1000) + b"\r\n")
        await writer.drain()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (file(bytes(4097)), "is larger than 4096 bytes"),
        (reply(body=PNG, Content_Length="99999999999999999999999"), "no HTTP|is larger"),
        (reply(body=PNG, Content_Length="5000000000"), "is larger than 4096 bytes"),
        (reply(body=PNG, Content_Length="-1"), "no HTTP that is understood"),
        (reply(body=PNG[:-1], Content_Length=str(len(PNG))), "ended before it was whole"),
        (reply(body=b"ff\r\n" + PNG, Transfer_Encoding="chunked"), "ended before it was whole"),
        (reply(body=PNG, Content_Length="72", Transfer_Encoding="chunked"), "no HTTP that is understood"),
        (reply(body=PNG, Transfer_Encoding="gzip"), "no HTTP that is understood"),
        (reply(body=gzip.compress(bytes(1 << 20)), Content_Encoding="gzip"), "packed as 'gzip'"),
        (reply(body=PNG, Content_Encoding="br"), "packed as 'br'"),
        (b"", "ended before it was whole"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "no HTTP that is understood"),
        (b"\x00" * 100, "no HTTP that is understood"),
        (b"HTTP/1.1 101 Switching\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n", "no HTTP|ended before"),
        (reply("404 Not Found", b"<html>", Content_Length="6"), "answered with the status 404"),
        (reply("500 Oh", b"", Location="http://secret/"), "answered with the status 500"),
        (reply("304 Not Modified"), "answered with the status 304"),
        (reply("206 Partial Content", PNG, Content_Length=str(len(PNG))), "answered with the status 206"),
        (reply("302 Found"), "answered with the status 302"),
        (endless, "is larger than 4096 bytes"),
        (headers_forever, "more than 65536 bytes beside the file"),
        (one_header_forever, "more than 65536 bytes beside the file|no HTTP"),
        (hints_forever, "more than 65536 bytes beside the file"),
        (trailers_forever, "more than 65536 bytes beside the file"),
    ],
)
def test_a_host_that_answers_otherwise_is_refused_in_a_sentence(answer: bytes | Script, says: str) -> None:
    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = answer
        assert re.search(says, found := await refusal(fetcher(origin), origin.url)), found
        while origin.open:
            await asyncio.sleep(0)

    with_origin(script)


async def trickling(writer: asyncio.StreamWriter) -> None:
    """Say a length, and send it byte by byte."""
    writer.write(reply(Content_Length="4000"))
    for _ in range(4000):
        writer.write(b"a")
        await writer.drain()
        await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("answer", "limits", "says"),
    [
        (silent, FetchLimits(first_byte=0.05), "was not answered within 0.05 s"),
        (trickling, FetchLimits(total=0.2), "took longer than 0.2 s"),
        (silent, FetchLimits(total=0.05), "took longer than 0.05 s"),
    ],
    ids=["no reply", "a trickle", "no reply in all"],
)
def test_time_is_bounded(answer: Script, limits: FetchLimits, says: str) -> None:
    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = answer
        assert says in await refusal(fetcher(origin, limits=limits), origin.url)

    with_origin(script)


def test_redirects_within_the_list_are_followed_so_many_times() -> None:
    async def script(origin: PictureOrigin) -> None:
        origin.replies |= {
            "/1": moved("/2?b=c", "301 Moved"), "/2?b=c": moved(f"http://{NAME}:{origin.port}/3", "307 Here"),
            "/3": moved("4", "308 There"), "/4": file(), "/0": moved("1"), "/loop": moved("loop"),
        }  # fmt: skip
        assert await fetch(fetcher(origin), f"{origin.url}/1") == PNG
        assert origin.paths == ["/1", "/2?b=c", "/3", "/4"]
        assert "more than 3 times" in await refusal(fetcher(origin), f"{origin.url}/0")
        assert "more than 3 times" in await refusal(fetcher(origin), f"{origin.url}/loop")
        assert origin.paths.count("/loop") == 4

    with_origin(script)


@pytest.mark.parametrize(
    ("location", "says"),
    [
        ("http://169.254.169.254/latest/meta-data?secret", "names the host '169.254.169.254'"),
        ("//other.example/", "names the host 'other.example'"),
        ("http://127.0.0.1:22/", "names the host '127.0.0.1:22'"),
        ("file:///etc/passwd?secret", "must begin with https:// or http://"),
        ("gopher://127.0.0.1/", "must begin with https:// or http://"),
        ("http://user:secret@images.example/", "must have no user"),
        ("http://a b/", "visible ASCII"),
        ("http://[", "must be an address like"),
    ],
)
def test_no_redirect_leads_elsewhere(location: str, says: str) -> None:
    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = moved(location)
        found = await refusal(fetcher(origin), origin.url)
        assert found.startswith("is redirected to ") and says in found
        assert len(origin.asked) == 1

    with_origin(script)


@pytest.mark.parametrize(
    "answers",
    [["10.0.0.1"], ["93.184.216.34", "10.0.0.1"], ["2606:4700::1111", "::1"], ["::ffff:127.0.0.1"], ["169.254.169.254"],
     ["64:ff9b::7f00:1"], ["fe80::1%1"], ["0.0.0.0"]],
)  # fmt: skip
def test_a_name_that_leads_to_a_private_address_leads_nowhere(answers: list[str]) -> None:
    """Also where a public one stands beside it."""

    async def script(origin: PictureOrigin) -> None:
        of = fetcher(origin, {NAME: answers})
        assert await refusal(of, f"http://{NAME}:{origin.port}/") == NO_PRIVATE
        assert not origin.asked

    with_origin(script)


def test_a_name_is_asked_once_for_each_hop_and_connected_by_that_answer() -> None:
    """An answer that changes a moment later changes nothing: there is no second question."""

    async def script(origin: PictureOrigin) -> None:
        origin.replies |= {"/": moved("/a"), "/a": file()}
        of = fetcher(origin)
        assert await fetch(of, f"http://{NAME}:{origin.port}/") == PNG
        assert isinstance(of.network, KnownNames) and of.network.questions == [NAME, NAME]
        of.network.names = {NAME: ["10.0.0.1"]}
        assert await refusal(of, f"http://{NAME}:{origin.port}/a") == NO_PRIVATE

    with_origin(script)


def test_an_address_that_the_operator_wrote_is_meant() -> None:
    """A private address by itself, behind a name of the list, and as localhost; at its port alone."""

    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = file()
        named, port = {NAME: [LOOPBACK], "localhost": ["::1", LOOPBACK]}, origin.port
        by_address = WebFetcher(MediaHosts([f"{LOOPBACK}:{port}", f"{NAME}:{port}"]), LIMITS, KnownNames(named))
        by_name = WebFetcher(MediaHosts([f"localhost:{port}", f"{NAME}:{port}"]), LIMITS, KnownNames(named))
        name_alone = WebFetcher(MediaHosts([f"{NAME}:{port}", LOOPBACK]), LIMITS, KnownNames(named))
        assert await fetch(by_address, f"http://{LOOPBACK}:{port}/") == PNG
        assert await fetch(by_address, f"http://{NAME}:{port}/") == PNG
        assert await fetch(by_name, f"http://localhost:{port}/") == PNG
        assert "names the host" in await refusal(by_address, f"http://localhost:{port}/")
        assert "names the host" in await refusal(name_alone, f"http://{LOOPBACK}:{port}/")
        assert await refusal(name_alone, f"http://{NAME}:{port}/") == NO_PRIVATE
        assert "takes no connection" in await refusal(
            WebFetcher(MediaHosts(["[::1]:1"]), LIMITS, KnownNames({})), "http://[::1]:1/"
        )

    with_origin(script)


def test_names_without_an_answer_are_not_found() -> None:
    class Hanging(KnownNames):
        async def resolve(self, host: str, port: int) -> list[str]:
            await asyncio.Event().wait()
            return []

    async def script(origin: PictureOrigin) -> None:
        url = f"http://{NAME}:{origin.port}/"
        answers: list[list[str]] = [[], ["no address"]]
        for names in ({}, *({NAME: answer} for answer in answers)):
            assert "which is not found" in await refusal(fetcher(origin, names), url)
        hanging = WebFetcher(MediaHosts([f"{NAME}:{origin.port}"]), FetchLimits(step=0.05), Hanging({}))
        assert "not found within 0.05 s" in await refusal(hanging, url)

    with_origin(script)


def test_what_takes_the_bytes_may_end_the_fetch() -> None:
    class Full(Exception):
        pass

    def take(size: int) -> None:
        raise Full

    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = endless
        with pytest.raises(Full):
            await fetcher(origin, limits=FetchLimits()).fetch(web_address(origin.url), take)
        while origin.open:
            await asyncio.sleep(0)

    with_origin(script)


@pytest.mark.parametrize("moment", range(8))
def test_a_cancelled_fetch_leaves_no_connection(moment: int) -> None:
    """However far it is: after so many turns of the loop."""

    async def script(origin: PictureOrigin) -> None:
        origin.replies["/"] = silent if moment % 2 else endless
        task = asyncio.ensure_future(fetcher(origin, limits=FetchLimits(size=1 << 40)).fetch(
            web_address(origin.url), lambda size: None
        ))  # fmt: skip
        for _ in range(1 + moment * 2):
            await asyncio.sleep(0)
        if moment > 5:
            while not origin.asked:
                await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        while origin.open:
            await asyncio.sleep(0)
        while any("followed" in repr(other) for other in asyncio.all_tasks()):
            await asyncio.sleep(0)

    with_origin(script)
