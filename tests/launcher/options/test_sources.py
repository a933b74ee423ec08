# SPDX-License-Identifier: Apache-2.0
"""Precedence of defaults, the file, the environment and flags, and the values that are refused."""

import json
from dataclasses import Field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.options.environment import SECRETS
from pontil.launcher.options.options import OPTIONS, LaunchOptions, flag_name, read_options, read_settings
from pontil.launcher.options.sources import Setting, settle, variable_name

BY_FLAG = {flag_name(each): each for each in OPTIONS}
ORDER = ("file", "environment", "flag")


def another(declared: Field[Any]) -> tuple[str, Any]:
    """Return a valid text for the option, other than its default, with its meaning."""
    for text in (
        "7",
        "7.5",
        "0.5",
        "0.25",
        "true",
        "false",
        "cpu:0,cpu",
        "ipc:///x",
        "x",
        "http://127.0.0.1/x",
        "a=cpu",
        "memory:1MiB",
        *declared.metadata["metavar"].split("|"),
    ):
        try:
            value = declared.metadata["read"](text)
        except ValueError:
            continue
        if value != declared.default:
            return text, value
    raise AssertionError(f"what may {declared.name} be?")


def setting(name: str, settings: list[Setting]) -> Setting:
    return next(each for each in settings if each.name == name)


@pytest.mark.parametrize("name", BY_FLAG)
def test_every_option_can_be_given_in_every_way(name: str, tmp_path: Path) -> None:  # G1
    text, value = another(BY_FLAG[name])
    path, variable = tmp_path / "c.toml", variable_name(name)
    path.write_text(f"{name} = {json.dumps(text)}\n")
    assert setting(name, read_settings({}, path)) == Setting(name, value, "file", str(path))
    if variable not in SECRETS:  # The values of these are keys, not the files that hold them.
        assert setting(name, read_settings({}, None, {variable: text})) == Setting(name, value, "environment", variable)
    given: Any = value if isinstance(value, bool) else text
    assert setting(name, read_settings({BY_FLAG[name].name: given})) == Setting(name, value, "flag", f"--{name}")
    assert setting(name, read_settings({})) == Setting(name, BY_FLAG[name].default, "default", "")


@given(st.dictionaries(st.sampled_from(ORDER), st.integers(0, 65535)))
def test_the_strongest_source_wins(tmp_path_factory: pytest.TempPathFactory, values: dict[str, int]) -> None:
    path = tmp_path_factory.getbasetemp() / "strongest.toml"
    path.write_text(f"port = {values['file']}\n" if "file" in values else "")
    variables = {"PONTIL_PORT": str(values["environment"])} if "environment" in values else {}
    found = read_settings({"port": values.get("flag")}, path, variables)
    strongest = next((source for source in reversed(ORDER) if source in values), "default")
    port = setting("port", found)
    assert (port.value, port.source) == (values.get(strongest, LaunchOptions().port), strongest)
    assert [each.name for each in found if each.source != "default"] == ["port"] * bool(values)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"PONTIL_MAX_NUM_SEQ": "3"}, "unknown PONTIL_MAX_NUM_SEQ: did you mean 'PONTIL_MAX_NUM_SEQS'?"),
        ({"PONTIL_max_num_seqs": "3"}, "did you mean 'PONTIL_MAX_NUM_SEQS'?"),
        ({"PONTIL_CASHE": "/x"}, "did you mean 'PONTIL_CACHE'?"),
        ({"PONTIL_ZZZZZZ": "3"}, "unknown PONTIL_ZZZZZZ; `launch --help` lists"),
        ({"PONTIL_PORT": "many"}, "PONTIL_PORT must be a whole number from 0 to 65535, not 'many'."),
        ({"PONTIL_SHARE_DEVICES": "yes"}, "PONTIL_SHARE_DEVICES must be true or false"),
    ],
)
def test_a_faulty_environment_is_refused_in_one_sentence(variables: dict[str, str], words: str) -> None:  # G1, D9
    with pytest.raises(OptionError) as refusal:
        read_options({}, None, variables)
    assert words in refusal.value.message and refusal.value.exit_code == 2


def test_what_is_overruled_must_be_right_too(tmp_path: Path) -> None:
    (tmp_path / "c.toml").write_text("port = 70000\n")
    with pytest.raises(OptionError, match=r"port in c\.toml"):
        read_options({"port": "1"}, tmp_path / "c.toml", {"PONTIL_PORT": "2"})
    with pytest.raises(OptionError, match="PONTIL_PORT"):
        read_options({"port": "1"}, None, {"PONTIL_PORT": "70000"})


def test_other_variables_are_nobodys_business() -> None:
    variables = {"PORT": "1", "PONTIL_CACHE": "/c", "PONTIL_CONFIG": "/none", "PONTIL_PORT": "", "pontil_port": "7"}
    assert read_options({}, None, variables) == LaunchOptions()


def test_two_options_never_share_a_name() -> None:
    assert len({variable_name(name) for name in BY_FLAG}) == len(BY_FLAG)
    assert settle({}, {"port": 1}, None, {}) == []


def test_no_secret_is_given_on_the_command_line() -> None:
    """Options never take secrets, only files that hold them: every user of a machine can read every command line."""
    for name, declared in BY_FLAG.items():
        words = set(name.split("-")) & {"key", "keys", "token", "secret", "password"}
        is_switch = isinstance(declared.default, bool)
        assert not words or is_switch or {"FILE", "PATH"} & set(declared.metadata["metavar"].split("|")), name
