# SPDX-License-Identifier: Apache-2.0
"""API keys of clients: read from files and the environment, and never shown afterwards."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from command_line import app
from hypothesis import given, settings
from hypothesis import strategies as st

from pontil.launcher.child.child import Child
from pontil.launcher.child.starter import ExecStarter
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.keys.client_keys import LINE, MOST_KEYS, ClientKeys, change_client_keys, new_line, read_client_keys
from pontil.launcher.options.environment import LaunchEnvironment
from pontil.launcher.options.options import LaunchOptions
from pontil.launcher.plan.child_plan import ChildPlan

ALICE, BOB, ADMIN = "sk-alice-0123456789", "bob/0123456789+abc==", "adm-0123456789-adm"


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def unnamed(key: str) -> str:
    """Return the name of a client whose key has none."""
    return f"key-{digest(digest(key))[:12]}"


def written(path: Path, text: str) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


def read(path: Path, text: str) -> ClientKeys:
    return read_client_keys(LaunchOptions(api_keys=written(path, text)), {})


def test_names_comments_and_what_has_no_name(tmp_path: Path) -> None:  # F5
    keys = read(tmp_path / "keys", f"# ours\n\n alice={ALICE} \n{BOB}\n  # more\nalice={ADMIN}\n")
    assert keys.callers == (("alice", digest(ALICE)), (unnamed(BOB), digest(BOB)), ("alice", digest(ADMIN)))
    assert keys.admin is None


def test_nobody_inherits_the_name_of_a_key_that_is_gone(tmp_path: Path) -> None:
    """Usage, limits, cached prefixes and kept responses belong to a name."""
    before = read(tmp_path / "keys", f"{ALICE} rate=1\n{BOB}\n{ADMIN}\n")
    after = read(tmp_path / "keys", f"{ADMIN}\n# a new one\nnew=new-0123456789-new\n{BOB}\n")
    named = {digested: name for name, digested in before.callers}
    assert len(set(named.values())) == 3 and not any(digested.startswith(name[4:]) for digested, name in named.items())
    assert {digested: name for name, digested in after.callers if name != "new"} == {
        digest(key): named[digest(key)] for key in (BOB, ADMIN)
    }
    assert before.allowances == ((named[digest(ALICE)], (("rate", 1.0),)),) and not after.allowances


def test_the_environment_holds_keys_themselves(tmp_path: Path) -> None:  # F5
    variables = {"PONTIL_API_KEYS": f"alice={ALICE}, {BOB}", "PONTIL_ADMIN_KEY": ADMIN}
    keys = read_client_keys(LaunchOptions(), variables)
    assert keys == ClientKeys((("alice", digest(ALICE)), (unnamed(BOB), digest(BOB))), digest(ADMIN))
    options = LaunchOptions(api_keys=written(tmp_path / "keys", "carol=" + 20 * "c"))
    assert [name for name, _ in read_client_keys(options, variables).callers] == ["carol", "alice", unnamed(BOB)]
    assert read_client_keys(LaunchOptions(), {"PONTIL_API_KEYS": " "}) == ClientKeys()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "has no API key"),
        ("# nobody yet\n", "has no API key"),
        ("hunter2", "Line 1 of .* is no key"),
        (f"{ALICE}\nhunter2hunter2 hunter2", "Line 2 of .* is no key"),
        ("ключключключключключ", "Line 1 of .* is no key"),
        (f"admin={ALICE}", "Line 1 of .* names a client admin"),
        (f"a={ALICE}\nb={ALICE}", "API key 2 is there twice"),
        ("\n".join(f"{number:016}" for number in range(MOST_KEYS + 1)), "257 API keys, and 256 is the most"),
        (f"{ALICE}\n" + "#" * (1 << 18), "larger than a file of API keys"),
    ],
)
def test_what_is_no_key_is_refused_and_never_shown(tmp_path: Path, text: str, said: str) -> None:  # F5
    with pytest.raises(OptionError, match=said) as refused:
        read(tmp_path / "keys", text)
    assert "hunter2" not in refused.value.message and ALICE not in refused.value.message


def test_a_file_that_others_can_open_is_refused(tmp_path: Path) -> None:
    options = LaunchOptions(api_keys=written(tmp_path / "keys", ALICE))
    (tmp_path / "keys").chmod(0o644)
    with pytest.raises(OptionError, match="file of API keys .* is open to other users.*chmod 600"):
        read_client_keys(options, {})
    with pytest.raises(OptionError, match="cannot be read .No such file"):
        read_client_keys(LaunchOptions(admin_key=str(tmp_path / "none")), {})


def test_there_is_one_admin_key_and_it_is_nobody_elses(tmp_path: Path) -> None:
    one = written(tmp_path / "admin", ADMIN)
    assert read_client_keys(LaunchOptions(admin_key=one), {}).admin == digest(ADMIN)
    with pytest.raises(OptionError, match="There is one admin key"):
        read_client_keys(LaunchOptions(admin_key=one), {"PONTIL_ADMIN_KEY": ALICE})
    with pytest.raises(OptionError, match="is a client's key too"):
        read_client_keys(LaunchOptions(admin_key=one), {"PONTIL_API_KEYS": ADMIN})


def test_nobody_serves_a_network_by_accident() -> None:  # F5
    with pytest.raises(OptionError, match="--host 0.0.0.0 can be reached .*--api-keys FILE.*--insecure"):
        read_client_keys(LaunchOptions(host="0.0.0.0"), {})
    with pytest.raises(OptionError, match="--api-keys"):
        read_client_keys(LaunchOptions(host="::", admin_key=None), {"PONTIL_ADMIN_KEY": ADMIN})
    read_client_keys(LaunchOptions(host="0.0.0.0"), {"PONTIL_API_KEYS": ALICE})
    read_client_keys(LaunchOptions(host="0.0.0.0", insecure=True), {})
    read_client_keys(LaunchOptions(host="::1"), {})
    assert read_client_keys(LaunchOptions(host="0.0.0.0", join="tcp://a:1"), {}) == ClientKeys(), "none serves here"


def test_no_form_of_what_holds_keys_shows_them() -> None:
    keys = ClientKeys((("alice", digest(ALICE)),), digest(ADMIN))
    plan = ChildPlan("proxy", "proxy", "cpu", (0,), keys.config)
    launch_environment = LaunchEnvironment({"PONTIL_API_KEYS": ALICE, "PONTIL_ADMIN_KEY": ADMIN, "A": "b"}, 0)
    shown = f"{keys} {plan} {launch_environment}"
    assert not [secret for secret in (ALICE, ADMIN, digest(ALICE), digest(ADMIN)) if secret in shown]
    assert launch_environment.for_child(None) == {"A": "b", "PYTHONUNBUFFERED": "1"}, "no child has them"


@settings(max_examples=50)
@given(st.from_regex(LINE, fullmatch=True))
def test_a_line_has_one_meaning(line: str) -> None:
    found = LINE.fullmatch(line)
    assert found is not None and (line == found[2] if found[1] is None else line == f"{found[1]}={found[2]}")
    assert len(found[2]) >= 16 and not found[2].startswith("=")


def test_a_new_key_is_a_line_of_a_file(tmp_path: Path) -> None:
    lines = [new_line("alice"), new_line("a.b-C_9"), new_line(None), new_line("alice")]
    keys = read(tmp_path / "keys", "\n".join(lines))
    assert [name for name, _ in keys.callers] == ["alice", "a.b-C_9", unnamed(lines[2]), "alice"]
    for name in ("admin", "", "two words", "-x", "ä", "#a", "a" * 65, "a\nb"):
        with pytest.raises(OptionError, match="is no name for a client"):
            new_line(name)


class ToldKeys:
    """A running process that records the messages sent to it."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    @property
    def driver(self) -> "ToldKeys":
        return self

    def send(self, message: dict[str, Any]) -> None:
        self.messages.append(message)


def test_a_reload_is_taken_over_by_the_proxy_and_its_next_lives() -> None:
    before = ClientKeys((("alice", digest(ALICE)),))
    plans = (ChildPlan(name, name, "cpu", (0,), before.config) for name in ("proxy", "decode"))
    proxy, worker = (Child(plan, ExecStarter(("true",), lambda threads: {})) for plan in plans)
    told = ToldKeys()
    proxy.group = told  # type: ignore[assignment]
    assert "have not changed" in change_client_keys(lambda: before, [proxy, worker]) and not told.messages
    after = replace(before, callers=(("bob", digest(BOB)),), admin=digest(ADMIN))
    assert change_client_keys(lambda: after, [proxy, worker]) == "API keys in use now: 1"
    assert told.messages == [{"kind": "client_keys", **after.config}]
    assert proxy.plan.config == after.config and worker.plan.config == before.config

    def fails() -> ClientKeys:
        raise OptionError("there is none")

    assert "stay what they were: there is none" in change_client_keys(fails, [proxy])
    assert proxy.plan.config == after.config and len(told.messages) == 1


def test_the_command_line_shows_files_and_never_keys(tmp_path: Path) -> None:  # F5
    path = written(tmp_path / "keys", BOB)
    shown = app("config", "--json", "--api-keys", path, PONTIL_API_KEYS=ALICE, PONTIL_ADMIN_KEY=ADMIN)
    rows = {row["name"]: row["value"] for row in json.loads(shown.stdout)}
    assert (rows["api-keys"], rows["admin-key"]) == (path, None)
    plan = app("launch", "--dry-run", "--role", "mixed", "--api-keys", path, PONTIL_API_KEYS=ALICE)
    assert plan.returncode == 0, plan.stderr
    wrong = app("launch", PONTIL_API_KEY=ALICE)
    assert wrong.returncode == 2 and "did you mean 'PONTIL_API_KEYS'?" in wrong.stderr
    refused = app("launch", "--host", "0.0.0.0")
    assert refused.returncode == 2 and len(refused.stderr.splitlines()) == 1 and "--api-keys FILE" in refused.stderr
    everything = "".join(one.stdout + one.stderr for one in (shown, plan, wrong, refused))
    assert not [key for key in (ALICE, BOB, ADMIN) if key in everything]
    made = app("keys", "api", "alice")
    assert made.returncode == 0 and LINE.fullmatch(made.stdout.rstrip("\n"))
    joined = app("launch", "--role", "decode", "--join", "ipc:///x", "--api-keys", path)
    assert joined.returncode == 2 and "--join starts none" in joined.stderr
