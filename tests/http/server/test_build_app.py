# SPDX-License-Identifier: Apache-2.0
"""The making of the app, which every start of a proxy waits for."""

import gc
import weakref
from pathlib import Path

import pytest
import sanic.mixins.routes
from proxy_configs import bare_config
from scripted_site import MODEL, site

from pontil.http.server.service import build_app
from pontil.runtime.proxy.proxy import Proxy
from pontil.runtime.tokenizer.tokenizer import Tokenizer


def test_no_handler_is_read_for_a_format_of_errors(
    tmp_path: Path, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sanic would parse the source of each handler whose route names no format, though all errors are JSON."""
    read: list[object] = []
    monkeypatch.setattr(sanic.mixins.routes, "getsource", read.append)
    proxy = Proxy(bare_config(f"ipc://{tmp_path}/control", model=MODEL, version="1.2.3"), tokenizer)
    build_app(proxy)
    assert read == []


def test_nothing_keeps_a_site_that_has_ended(tmp_path: Path, tokenizer: Tokenizer) -> None:
    """Sites that stay in a process of tests make it slower with each: a look for garbage would take seconds."""
    with site(tmp_path, tokenizer) as made:
        made.pair()
        assert made.ask("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2}).status == 200
        proxy = weakref.ref(made.proxy)
    del made
    gc.collect()
    assert proxy() is None
