# SPDX-License-Identifier: Apache-2.0
"""Settings of clients in a key file."""

from dataclasses import fields, replace
from pathlib import Path

import pytest
from effort import examples
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.launcher.child.child import Child
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.keys.client_keys import (
    SETTINGS,
    ClientKeys,
    change_client_keys,
    digest,
    new_line,
    read_client_keys,
    read_key_settings,
)
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.child_plan import ChildPlan
from pontil.launcher.plan.topology import plan_proxy
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.foundation.fair_share import ServiceClass
from pontil.runtime.proxy.requests.ticket import Allowance

ALICE, BOB = "sk-alice-0123456789", "sk-bob-0123456789=="
ALL = "share=2.5 class=interactive requests=8 tokens=20000 rate=60 token_rate=100000 priority=yes"


def read(path: Path, text: str, variables: dict[str, str] | None = None) -> ClientKeys:
    path.write_text(text)
    path.chmod(0o600)
    return read_client_keys(LaunchOptions(api_keys=str(path)), variables or {})


def unnamed(key: str) -> str:
    """Return the name of a client whose key has none."""
    return f"key-{digest(digest(key))[:12]}"


def test_settings_are_what_an_allowance_has() -> None:
    assert [name.removeprefix("service_") for name in (one.name for one in fields(Allowance))] == list(SETTINGS)
    everything = Allowance(2.5, ServiceClass.INTERACTIVE, 8, 20000, 60, 100000, True)
    assert Allowance.of(read_key_settings(ALL.split())) == everything
    assert read_key_settings([]) == () and Allowance.of(read_key_settings(["priority=no"])) == Allowance()
    assert [Allowance.of(read_key_settings([f"class={each.word}"])).service_class for each in ServiceClass] == [
        *ServiceClass
    ]
    assert read_key_settings(["weight=2"]) == read_key_settings(["share=2"]), "its former name"


def test_they_stand_behind_a_key_in_any_order(tmp_path: Path) -> None:
    text = f"alice={ALICE}   rate=60\tshare=2 \n{BOB} requests=3\ncarol=sk-carol-0123456789\n"
    keys = read(tmp_path / "keys", text)
    assert [name for name, _ in keys.callers] == ["alice", unnamed(BOB), "carol"]
    assert keys.allowances == (("alice", (("share", 2.0), ("rate", 60.0))), (unnamed(BOB), (("requests", 3),)))


def test_they_reach_the_proxys_configuration(tmp_path: Path) -> None:
    keys = read(tmp_path / "keys", f"alice={ALICE} {ALL}\nbob={BOB}\n")
    planned = plan_proxy([LaunchOptions()], HostDevices((0,), 1, 0), tmp_path, "ipc:///c").config
    assert keys.config.keys() <= planned.keys()
    made = proxy_config(planned | keys.config)
    assert made.callers == keys.callers and made.allowances == keys.allowances
    assert proxy_config(planned).allowances == () and hash(made)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("shrae=2", "Line 2 of .*keys has an unknown setting: did you mean 'share'"),
        ("hunter2=hunter2", "Line 2 of .*keys has an unknown setting: there are share, class, requests, tokens"),
        ("share=hunter2", "Line 2 of .*keys sets share, which must be a number from 0.01 to 1000"),
        ("share=0", "sets share, which must be a number from 0.01"),
        ("share=nan", "sets share, which must be"),
        ("rate=inf", "sets rate, which must be"),
        ("requests=1.5", "sets requests, which must be a whole number from 1"),
        ("tokens=-1", "sets tokens, which must be a whole number from 1"),
        ("priority=maybe", "sets priority, which must be yes or no"),
        ("rate=1 rate=2", "sets rate twice"),
        ("class=hunter2", "sets class, which must be one of interactive, standard, batch"),
        ("share=1 weight=2", "sets weight twice"),
        ("hunter2", "Line 2 of .*keys is no key, or has something behind it"),
        ("share = 2", "is no key"),
    ],
)
def test_what_is_wrong_is_named_by_its_place_and_never_shown(tmp_path: Path, words: str, said: str) -> None:
    with pytest.raises(OptionError, match=said) as refused:
        read(tmp_path / "keys", f"bob={BOB}\nalice={ALICE} {words}\n")
    assert not [secret for secret in ("hunter2", ALICE, BOB) if secret in refused.value.message]


def test_a_client_has_its_limits_once(tmp_path: Path) -> None:
    one, other = f"alice={ALICE} rate=60 share=2", f"alice={BOB} share=2 rate=60"
    keys = read(tmp_path / "keys", f"{one}\n{other}\n")
    assert len(keys.callers) == 2 and keys.allowances == (("alice", (("share", 2.0), ("rate", 60.0))),)
    for differing in (f"alice={BOB}", f"alice={BOB} share=2"):
        with pytest.raises(OptionError, match="API key 2 is one of several of 'alice', and their settings differ"):
            read(tmp_path / "keys", f"{one}\n{differing}\n")
    with pytest.raises(OptionError, match="settings differ"):
        read(tmp_path / "keys", one, {"PONTIL_API_KEYS": f"alice={BOB}"})


def test_the_environment_and_the_admin_key_have_none(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Key 2 of PONTIL_API_KEYS is no key"):
        read_client_keys(LaunchOptions(), {"PONTIL_API_KEYS": f"alice={ALICE} share=2"})
    path = tmp_path / "admin"
    path.write_text(f"{ALICE} share=2")
    path.chmod(0o600)
    with pytest.raises(OptionError, match="The admin key has no settings"):
        read_client_keys(LaunchOptions(admin_key=str(path)), {})


def test_a_new_key_can_have_them(tmp_path: Path) -> None:
    keys = read(tmp_path / "keys", new_line("alice", ["share=2", "priority=yes"]))
    assert keys.allowances == (("alice", (("share", 2.0), ("priority", True))),)
    for wrong in ("wait=2", "share=x", "share"):
        with pytest.raises(OptionError):
            new_line("alice", [wrong])
    with pytest.raises(OptionError, match="sets share twice"):
        new_line("alice", ["share=2", "share=2"])


@settings(max_examples=examples(20, 100))
@given(st.lists(st.text(max_size=12), max_size=4))
def test_anything_is_taken_or_refused(words: list[str]) -> None:
    try:
        found = read_key_settings(words)
    except ValueError:
        return
    Allowance.of(found)


def test_other_settings_are_other_keys_to_a_reload() -> None:
    before = ClientKeys((("alice", "0" * 64),))
    proxy = Child(ChildPlan("proxy", "proxy", "cpu", (0,), before.config), ExecStarter(("true",), lambda threads: {}))
    after = replace(before, allowances=(("alice", (("share", 2.0),)),))
    assert "have not changed" in change_client_keys(lambda: before, [proxy])
    assert "in use now" in change_client_keys(lambda: after, [proxy])
    assert proxy.plan.config["allowances"] == [["alice", [["share", 2.0]]]]
