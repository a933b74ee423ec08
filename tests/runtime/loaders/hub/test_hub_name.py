# SPDX-License-Identifier: Apache-2.0
"""The form of a hub's names."""

import pytest

from pontil.runtime.loaders.hub.hub_name import HubName, is_plain_path, read_hub_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("owner/model", HubName("owner/model")),
        ("owner/model-1.5@refs/pr/3", HubName("owner/model-1.5", "refs/pr/3")),
        ("owner/model:Q4_K_M", HubName("owner/model", file="Q4_K_M")),
        ("owner/model@v1:sub/a b.gguf", HubName("owner/model", "v1", "sub/a b.gguf")),
    ],
)
def test_names(text: str, name: HubName) -> None:
    assert read_hub_name(text) == name and str(name) == text


@pytest.mark.parametrize(
    "text",
    [
        "model", "a/b/c", "../model", "a/..", "./model", "/etc/passwd", "a b/c", "", "a/b@", "a/b:", "a/b@../x",
        "a/b:../x.gguf", "a/b:/x.gguf", "a--b/c", "a/b@x//y", "a/b:x\n", "-a/b", "a/" + "b" * 97,
    ],
)  # fmt: skip
def test_what_is_no_name(text: str) -> None:
    assert read_hub_name(text) is None


@pytest.mark.parametrize(
    "path",
    ["../a.json", "a/../b.json", "/a.json", "a//b.json", "./a.json", "a\\b.json", "a\0.json", "a\n.json", "\ud800.json",
     "x" * 256, "/".join(["d" * 200] * 6)],
)  # fmt: skip
def test_what_is_no_path_in_a_model(path: str) -> None:
    assert not is_plain_path(path)
