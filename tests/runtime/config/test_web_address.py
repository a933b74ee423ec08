# SPDX-License-Identifier: Apache-2.0
"""Addresses of files on the network are read in one way, and compared with what the operator wrote."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.runtime.config.web_address import MOST_CHARACTERS, MediaHosts, WebAddress, web_address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("https://images.example/a.png", ("https", "images.example", 443, "/a.png")),
        ("HTTP://Images.Example.:80?sign=x#part", ("http", "images.example", 80, "/?sign=x")),
        ("https://images.example:8443//a/../b?", ("https", "images.example", 8443, "//a/../b")),
        ("http://[::1]:9/a", ("http", "::1", 9, "/a")),
        ("http://[2001:DB8:0::1]/", ("http", "2001:db8::1", 80, "/")),
        # Other forms of 127.0.0.1 are names like any other: the list decides, and no resolver is asked.
        ("http://0x7f.1/", ("http", "0x7f.1", 80, "/")),
    ],
)
def test_an_address_has_one_form(url: str, expected: tuple[str, str, int, str]) -> None:
    assert web_address(url) == WebAddress(*expected)


@pytest.mark.parametrize(
    "url",
    ["", "/a.png", "file:///etc/passwd", "ftp://a/", "http://", "http:///a", "http:a", "http://a:0/", "http://a:70000/",
     "http://user@a/", "http://user:word@a/", "http://a@b@c/", "http://a\\@b/", "http://a b/", "http://a/\r\nHost: b",
     "http://a/\x00", "http://ä.example/", "http://a..b/", "http://-a/", "http://[::1/", "http://[fe80::1%25eth0]/",
     "http://a%2eb/", "http://" + "a" * 64 + "/", "http://a/" + "b" * MOST_CHARACTERS],
)  # fmt: skip
def test_other_addresses_are_refused_in_words(url: str) -> None:
    with pytest.raises(ValueError, match=r"^must "):
        web_address(url)


@given(st.text(max_size=60))
def test_no_text_but_an_address_is_read(text: str) -> None:
    """An address that is read can be sent in one line, and reads as itself."""
    for url in (text, f"http://{text}", f"https://a/{text}"):
        try:
            found = web_address(url)
        except ValueError:
            continue
        assert not set(found.target + found.authority) & set(" \r\n\t\\")
        assert web_address(f"{found.scheme}://{found.authority}{found.target}") == found


def test_a_target_is_in_no_text_form() -> None:
    assert "secret" not in repr(web_address("https://a/b?sign=secret"))


def test_ports_are_those_of_the_list() -> None:
    allowed = MediaHosts(["images.example", "Store.Example:9000", "10.0.0.5", "[::1]:81"])
    for url in (
        "http://images.example/", "https://images.example/", "https://images.example:80/", "http://store.example:9000/",
        "http://10.0.0.5/", "http://[0:0::1]:81/",
    ):  # fmt: skip
        assert allowed.allow(web_address(url)), url
    for url in (
        "http://images.example:8080/", "http://store.example/", "http://a.images.example/", "http://example/",
        "http://images.example.evil/", "http://10.0.0.5:9000/", "http://[::1]/", "http://10.5/",
    ):  # fmt: skip
        assert not allowed.allow(web_address(url)), url
    assert not MediaHosts([])


@pytest.mark.parametrize(
    ("entry", "says"),
    [("", "hosts like"), ("*", "hosts like"), ("http://a", "hosts like"), ("a/b", "hosts like"), ("a:0", "hosts like"),
     ("a:70000", "hosts like"), ("u@a", "hosts like"), ("localhost", "localhost with its port"), ("0.0.0.0", "single"),
     ("[::]:80", "single"), ("224.0.0.1", "single"), ("::1", "hosts like"), ("bücher.example", "hosts like")],
)  # fmt: skip
def test_entries_that_name_no_host_are_refused(entry: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        MediaHosts([entry])
