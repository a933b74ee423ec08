# SPDX-License-Identifier: Apache-2.0
"""Whole pulls of a model from a small hub, with the faults that hubs and lines to them have."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fake_hub import COMMIT, LATER, MODEL, FakeHub, HubFault, oid
from huggingface_hub import snapshot_download
from synced_names import note_syncs

from pontil.runtime.config.hub_access import HubAccess
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import local_model, resolve_model
from pontil.runtime.loaders.hub import hub_cache, hub_pull

Pull = Callable[..., tuple[Path, int]]
API = "/api/"
WANTED = ("config.json", "model.safetensors", "sub/a b.json")


def content(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def cached(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "hub" / "models--tiny--llama"


def test_a_model_is_fetched_once_without_code_and_found_without_a_network(
    hub: FakeHub, pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced = note_syncs(monkeypatch)
    assert resolve_from(tmp_path) is None
    path, fetched = pull()
    assert content(path) == {name: hub.files[name] for name in WANTED}
    assert fetched == hub.sent - hub_lists(hub) == sum(len(hub.files[name]) for name in WANTED)
    assert {path.suffix for path in synced} == {".partial"} and len(synced) == 3
    asked = len(hub.asked)
    assert resolve_from(tmp_path) == path and resolve_model(MODEL, tmp_path / "cache") == path
    assert len(hub.asked) == asked
    assert pull() == (path, 0)


def test_a_launch_fetches_what_the_cache_lacks(hub: FakeHub, tmp_path: Path) -> None:
    path = resolve_model(f"{MODEL}:Q8_0", tmp_path / "cache", HubAccess(hub.url))
    assert path.name == "a-Q8_0.gguf" and path.read_bytes() == hub.files["a-Q8_0.gguf"]


def hub_lists(hub: FakeHub) -> int:
    """Return the bytes of the pages that are no files."""
    return hub.sent - sum(len(hub.files[name]) for name, _ in hub.asked_files())


def resolve_from(tmp_path: Path, name: str = MODEL) -> Path | None:
    return local_model(name, tmp_path / "cache")


def test_the_layout_is_the_one_of_huggingface_hub(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    path, _ = pull()
    assert path == cached(tmp_path) / "snapshots" / COMMIT
    assert (cached(tmp_path) / "refs" / "main").read_text() == COMMIT
    assert (path / "config.json").readlink() == Path("../../blobs") / oid(b"{}")
    assert (path / "sub" / "a b.json").readlink() == Path("../../../blobs") / oid(b"[]")
    assert not list(cached(tmp_path).rglob("*.partial")) and not list(cached(tmp_path).rglob("*.etag"))
    found = snapshot_download(MODEL, cache_dir=tmp_path / "cache" / "hub", local_files_only=True)
    assert Path(found) == path


def test_a_cache_that_huggingface_hub_filled_is_found(tmp_path: Path) -> None:
    snapshot = cached(tmp_path) / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (cached(tmp_path) / "refs").mkdir()
    (cached(tmp_path) / "refs" / "main").write_text(COMMIT)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "model.safetensors").symlink_to("../../blobs/gone")
    assert resolve_from(tmp_path) is None
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").write_bytes(b"weights")
    assert resolve_from(tmp_path) == resolve_from(tmp_path, f"{MODEL}@{COMMIT}") == snapshot
    (snapshot / "model.safetensors.index.json").write_text('{"weight_map": {"a": "model-2.safetensors"}}')
    assert resolve_from(tmp_path) is None


def test_a_newer_state_is_fetched_by_a_pull_and_shares_what_is_the_same(
    hub: FakeHub, pull: Pull, tmp_path: Path
) -> None:
    old, _ = pull()
    hub.commit, hub.files["config.json"] = LATER, b'{"new": 1}'
    assert resolve_from(tmp_path) == old
    new, fetched = pull()
    assert fetched == len(b'{"new": 1}') and new.name == LATER and content(old)["config.json"] == b"{}"
    assert resolve_from(tmp_path) == new and resolve_from(tmp_path, f"{MODEL}@{COMMIT}") == old


def test_gguf_files_are_fetched_one_by_one(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    path, _ = pull(f"{MODEL}@v1:Q8_0")
    assert path.name == "a-Q8_0.gguf" and path.read_bytes() == hub.files["a-Q8_0.gguf"]
    assert [name for name, _ in hub.asked_files()] == ["a-Q8_0.gguf"]
    assert resolve_from(tmp_path, f"{MODEL}@v1:Q8_0") == path == resolve_from(tmp_path, f"{MODEL}@v1:a-Q8_0.gguf")
    assert resolve_from(tmp_path, f"{MODEL}@v1:Q4_K_M") is None and resolve_from(tmp_path) is None


def test_of_several_pulls_at_once_one_downloads(hub: FakeHub, pull: Pull) -> None:
    with ThreadPoolExecutor() as pool:
        done = list(pool.map(lambda _: pull(), range(4)))
    assert len({path for path, _ in done}) == 1
    assert sorted(name for name, _ in hub.asked_files()) == sorted(WANTED)
    assert sorted(fetched > 0 for _, fetched in done) == [False, False, False, True]


@pytest.mark.parametrize(
    "fault",
    [
        HubFault(cut=1),
        HubFault(cut=0),
        HubFault(status=503, headers={"Retry-After": "7"}),
        HubFault(status=429),
        HubFault(status=416),
        HubFault(status=206),
        HubFault(status=502, where=API),
        HubFault(cut=3, where=API),
    ],
)
def test_what_passes_is_tried_again(hub: FakeHub, pull: Pull, delays: list[float], fault: HubFault) -> None:
    hub.faults = [fault]
    path, _ = pull()
    assert content(path) == {name: hub.files[name] for name in WANTED}
    assert delays == [float(fault.headers.get("Retry-After", 1))]


@pytest.mark.parametrize(
    ("faults", "says"),
    [
        ([HubFault(status=401, where=API)], "no such model, or it needs a token.*set HF_TOKEN"),
        ([HubFault(status=403)], "needs a token"),
        ([HubFault(status=404, where=API)], "no such model, revision or file: check the id"),
        ([HubFault(status=404)], "check the id"),
        ([HubFault(status=418)], r"answers with HTTP 418"),
        ([HubFault(status=503)] * 3, r"is busy \(HTTP 503\), 3 times in a row: try again later"),
        ([HubFault(status=429, headers={"Retry-After": "3600"})], "asks to wait 3600 s"),
        ([HubFault(cut=0)] * 3, "ended before the end"),
        ([HubFault(extra=b"more")], "sends more of .* than the"),
        ([HubFault(status=200, where=API, body=b"<html>")], "does not answer as a hub does: check HF_ENDPOINT"),
        ([HubFault(status=200, where=API, body=b"[" * 100_000)], "does not answer as a hub does"),
        ([HubFault(status=200, where=API, body=b"[]")], "names no commit"),
        ([HubFault(status=200, where=API, body=b'{"sha": "../../x"}')], "names no commit"),
        ([HubFault(status=302, headers={"Location": "http://127.0.0.1:9/x"})], "not by https"),
        ([HubFault(status=302, headers={"Location": "file:///etc/passwd"})], "not by https"),
        ([HubFault(status=302, headers={"Location": "https://a:b@c/"})], "not by https"),
        ([HubFault(status=302, headers={"Location": "https://[x/"})], "no address"),
        ([HubFault(status=302)] * 9, "redirects more than 5 times"),
    ],
)
def test_what_does_not_pass_is_said_in_one_sentence(
    hub: FakeHub, pull: Pull, tmp_path: Path, faults: list[HubFault], says: str
) -> None:
    hub.faults = faults
    with pytest.raises(ModelError, match=says) as raised:
        pull()
    assert str(raised.value).startswith("tiny/llama cannot be fetched: ") and "\n" not in str(raised.value)
    assert resolve_from(tmp_path) is None


def test_another_content_is_deleted_and_a_resumed_one_begun_anew(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    size = len(hub.files["model.safetensors"])
    hub.faults = [HubFault(body=b"x" * size, where=f"/{MODEL}/resolve/{COMMIT}/model")]
    with pytest.raises(ModelError, match=r"model\.safetensors with another content than its digest says"):
        pull()
    assert not [path for path in (cached(tmp_path) / "blobs").iterdir() if path.suffix]
    blobs = cached(tmp_path) / "blobs"
    row = hub.row("model.safetensors")
    (blobs / f"{row['lfs']['oid']}.partial").write_bytes(b"y" * 10)
    hub.asked.clear()
    path, _ = pull()
    assert content(path)["model.safetensors"] == hub.files["model.safetensors"]
    ranges = [wanted for name, wanted in hub.asked_files() if name == "model.safetensors"]
    assert ranges == ["bytes=10-", None]


@pytest.mark.parametrize(
    ("row", "says"),
    [
        ({"path": "../x.json"}, "'../x.json', which is no path within a model"),
        ({"path": "/etc/x.json"}, "no path within a model"),
        ({"path": "a\n.json"}, r"'a\\n\.json', which is no path"),
        ({"size": -1}, "no size and digest of x.json"),
        ({"size": True}, "no size and digest"),
        ({"size": 1 << 60}, "no size and digest"),
        ({"oid": "../../x"}, "no size and digest"),
        ({"oid": None}, "no size and digest"),
        ({"size": 1 << 49}, "make room"),
    ],
)
def test_hostile_lists_are_refused_before_anything_is_fetched(
    hub: FakeHub, pull: Pull, tmp_path: Path, row: dict[str, Any], says: str
) -> None:
    hub.rows["x.json"] = {"type": "file", "path": "x.json", "size": 2, "oid": oid(b"{}")} | row
    with pytest.raises(ModelError, match=says):
        pull()
    assert hub.asked_files() == [] and not list(tmp_path.rglob("*.json"))


def test_rows_that_are_no_needed_files_are_passed_over(hub: FakeHub, pull: Pull) -> None:
    hub.rows |= {"../x.bin": {"type": "file", "path": "../x.bin"}, "sub": {"type": "directory", "path": "sub"}, "3": 3}
    assert set(content(pull()[0])) == set(WANTED)


def test_a_list_without_an_end_is_refused(hub: FakeHub, pull: Pull, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_pull, "MOST_PAGES", 1)
    with pytest.raises(ModelError, match="has no end"):
        pull()


def test_a_full_disk_is_said_before_anything_is_fetched(
    hub: FakeHub, pull: Pull, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage("/")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(ModelError, match="make room"):
        pull()
    assert hub.asked_files() == []


def test_a_cache_that_cannot_be_written(hub: FakeHub, pull: Pull, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("in the way")
    with pytest.raises(ModelError, match="cannot be written"):
        pull()


def test_offline_is_obeyed(hub: FakeHub, pull: Pull) -> None:
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE forbids"):
        pull(offline=True)
    assert hub.asked == []


@pytest.mark.parametrize("count", range(3))
def test_a_pull_that_ends_before_the_last_name_leaves_no_model(
    pull: Pull, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    made, place = list[Path](), hub_cache.place

    def killed(link: Path, target: str) -> None:
        if len(made) == count:
            raise KeyboardInterrupt
        made.append(link)
        place(link, target)

    with monkeypatch.context() as patch:
        patch.setattr(hub_cache, "place", killed)
        with pytest.raises(KeyboardInterrupt):
            pull()
    assert len(made) == count and resolve_from(tmp_path, f"{MODEL}@{COMMIT}") is None
    path, fetched = pull()
    assert fetched == 0 and resolve_from(tmp_path) == path
