# SPDX-License-Identifier: Apache-2.0
"""One file whose download breaks: wherever that is, the same bytes come in the end, and none twice."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_hub import COMMIT, MODEL, FakeHub, HubFault, fake_hub
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pontil.runtime.config.hub_access import HubAccess
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.hub.blob_download import BlobDownload
from pontil.runtime.loaders.hub.hub_cache import RepositoryFile
from pontil.runtime.loaders.hub.hub_client import HubClient
from pontil.runtime.loaders.hub.patience import Patience

CONTENT = bytes(range(97))
NAME = "model.safetensors"
SIZE = len(CONTENT)
FILE = RepositoryFile(NAME, SIZE, hashlib.sha256(CONTENT).hexdigest())
ONCE = Patience(silence=20, most_failures=1, wait=lambda seconds: None)
TAG = f'"{FILE.digest}"'


@pytest.fixture(scope="module")
def served() -> Iterator[FakeHub]:
    with fake_hub({NAME: CONTENT}) as hub:
        yield hub


@pytest.fixture
def one(served: FakeHub) -> FakeHub:
    served.asked.clear()
    served.faults.clear()
    return served


def download(hub: FakeHub, folder: Path, patience: Patience = ONCE) -> BlobDownload:
    client = HubClient(HubAccess(hub.url), patience)
    url = f"{hub.url}/{MODEL}/resolve/{COMMIT}/{NAME}"
    return BlobDownload(client, url, FILE, folder / FILE.digest, lambda done: None)


def attempts(hub: FakeHub, folder: Path, cuts: list[int]) -> list[str | None]:
    """Begin a download anew, each time after the line broke behind so many bytes; return the ranges asked for."""
    hub.faults = [HubFault(cut=cut) for cut in cuts]
    for _ in cuts:
        with pytest.raises(ModelError, match="ended before the end"):
            download(hub, folder).run()
    download(hub, folder).run()
    assert (folder / FILE.digest).read_bytes() == CONTENT and len(list(folder.iterdir())) == 1
    return [wanted for _, wanted in hub.asked_files()]


def test_a_cut_at_any_byte(one: FakeHub, tmp_path: Path) -> None:
    for cut in range(SIZE):
        one.asked.clear()
        ranges = attempts(one, tmp_path / str(cut), [cut])
        assert ranges == [None, f"bytes={cut}-" if cut else None]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(places=st.sets(st.integers(1, SIZE - 1), max_size=6).map(sorted))
def test_cuts_at_any_bytes(one: FakeHub, tmp_path_factory: pytest.TempPathFactory, places: list[int]) -> None:
    one.asked.clear()
    cuts = [end - begin for begin, end in zip([0, *places], places, strict=False)]
    ranges = attempts(one, tmp_path_factory.mktemp("cuts"), cuts)
    assert ranges == [None, *(f"bytes={place}-" for place in places)]


def begun(folder: Path, count: int, tag: str | None = TAG, content: bytes = CONTENT) -> Path:
    partial = folder / f"{FILE.digest}.partial"
    partial.write_bytes(content[:count])
    if tag is not None:
        (folder / f"{FILE.digest}.etag").write_text(tag)
    return partial


@pytest.mark.parametrize("tag", [TAG, None])
def test_the_rest_goes_on_with_and_without_a_known_tag(one: FakeHub, tmp_path: Path, tag: str | None) -> None:
    begun(tmp_path, 50, tag)
    assert download(one, tmp_path).run() == SIZE - 50
    assert one.asked[-1][1].get("if-range") == tag and len(one.asked) == 1


def test_a_changed_file_is_fetched_from_its_beginning(one: FakeHub, tmp_path: Path) -> None:
    begun(tmp_path, 50, '"another"', b"z" * 50)
    download(one, tmp_path).run()
    assert (tmp_path / FILE.digest).read_bytes() == CONTENT
    assert one.asked[-1][1]["if-range"] == '"another"' and len(one.asked) == 1


@pytest.mark.parametrize(
    "headers", [{"ETag": '"another"'}, {"Content-Range": "bytes 40-96/97"}, {"Content-Range": "nothing"}]
)
def test_a_rest_of_something_else_is_not_taken(one: FakeHub, tmp_path: Path, headers: dict[str, str]) -> None:
    begun(tmp_path, 50)
    one.faults = [HubFault(headers=headers)]
    download(one, tmp_path, Patience(most_failures=2, wait=lambda seconds: None)).run()
    assert (tmp_path / FILE.digest).read_bytes() == CONTENT
    assert [wanted for _, wanted in one.asked_files()] == ["bytes=50-", None]


@pytest.mark.parametrize("count", [SIZE, SIZE + 5])
def test_what_is_complete_or_too_long(one: FakeHub, tmp_path: Path, count: int) -> None:
    begun(tmp_path, count, content=CONTENT + b"12345")
    download(one, tmp_path).run()
    assert (tmp_path / FILE.digest).read_bytes() == CONTENT and len(one.asked) == (count > SIZE)


def test_a_trickle_is_a_broken_line(tmp_path: Path) -> None:
    """Bytes that come, but too few of them, do not hold a download for ever: here no window has enough."""
    with fake_hub({NAME: CONTENT}) as hub:
        hub.faults = [HubFault(cut=10) for _ in range(3)]
        patience = Patience(silence=20, window=0.0, most_failures=2, wait=lambda seconds: None)
        with pytest.raises(ModelError, match=r"sends only \d+ bytes in .* 2 times in a row"):
            download(hub, tmp_path, patience).run()
        assert not (tmp_path / FILE.digest).exists()


def test_silence_is_a_broken_line(tmp_path: Path) -> None:
    with fake_hub({NAME: CONTENT}) as hub:
        hub.faults = [HubFault(cut=10, hangs=True)]
        patience = Patience(silence=0.2, most_failures=2, wait=lambda seconds: None)
        download(hub, tmp_path, patience).run()
        assert (tmp_path / FILE.digest).read_bytes() == CONTENT
        assert [wanted for _, wanted in hub.asked_files()] == [None, "bytes=10-"]
