# SPDX-License-Identifier: Apache-2.0
"""Scripts send the key that a server with the same environment requires."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from pontil.launcher.keys.api_key import CLIENT, bearer

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "own_key.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    found = importlib.util.spec_from_file_location("scripts_own_key", SCRIPT)
    assert found is not None and found.loader is not None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "keys",
    [
        "",
        "  ",
        "sk-0123456789abcdef",
        "me=sk-0123456789abcdef",
        "abcdef/0123456789+==",
        "me=abcdef/0123456789+==",
        "sk-0123456789abcdef, you=sk-another-0123456789",
        "\nme=sk-0123456789abcdef\nsk-another-0123456789\n",
    ],
)
def test_scripts_read_the_variable_as_commands_do(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, keys: str
) -> None:
    monkeypatch.setenv("PONTIL_API_KEYS", keys)
    assert script.key_headers() == bearer(None, CLIENT, {"PONTIL_API_KEYS": keys})
