# SPDX-License-Identifier: Apache-2.0
"""systemd units: their settings agree with the supervisor, and systemd's own tool accepts them."""

import json
import os
import shlex
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click import UsageError
from click.testing import CliRunner, Result

from pontil.launcher.cli import cli
from pontil.launcher.commands.unit_file import quote
from pontil.launcher.commands.units import hidden, unit_of
from pontil.launcher.foundation.errors import OptionError, RefusedError
from pontil.launcher.keys.key_file import make_key_file
from pontil.launcher.options.sources import load_toml
from pontil.launcher.supervisor.supervisor import DRAIN_MARGIN, KILL_GRACE, TERM_GRACE

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = ROOT / "scripts" / "systemd"
# The command line of each shipped unit.
LAUNCHES = {
    "pontil.service": ["--config", "/etc/pontil/pontil.toml"],
    "pontil-proxy.service": ["--role", "proxy", "--config", "/etc/pontil/proxy.toml", "--keys",
                             "/etc/pontil/pontil.keys"],
    **{
        f"pontil-{role}@.service": ["--role", role, "--join", "tcp://proxy.internal:7000", "--config",
                                    "/etc/pontil/worker.toml", "--keys", "/etc/pontil/pontil.keys"]
        for role in ("prefill", "decode", "mixed")
    },
}  # fmt: skip
# The sample of each file in /etc/pontil that they name.
SAMPLES = {f"{name}.toml" for name in ("pontil", "proxy", "worker")}
LIKE = "--reference=%t/%N/."
COPY = "+/usr/bin/cp --remove-destination -T {} %t/%N/{}"
JOIN = ("--join", "tcp://10.0.0.1:7000", "--insecure")


def settings(text: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line and not line.startswith("#"))


def written(*words: str) -> dict[str, str]:
    return settings(unit_of([sys.executable], words, None).text())


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, ["units", *words], standalone_mode=False)


def test_a_stop_takes_no_longer_than_systemd_waits() -> None:  # G5
    for drain in ("0", "30", "600"):
        assert int(written("--drain-timeout", drain)["TimeoutStopSec"]) > (
            float(drain) + DRAIN_MARGIN + TERM_GRACE + KILL_GRACE
        )
    assert written()["KillMode"] == "mixed" and written()["Type"] == "notify" and written()["NotifyAccess"] == "main"


def test_restarts_agree_with_the_supervisors() -> None:  # G5
    made = written("--restart-attempts", "3", "--restart-window", "60")
    assert made["RestartPreventExitStatus"] == str(OptionError.exit_code) == str(RefusedError.exit_code)
    assert made["Restart"] == "on-failure" and made["StartLimitBurst"] == "3"
    assert int(made["StartLimitIntervalSec"]) >= 3 * (60 + int(made["RestartSec"]))
    assert {"130", "143"} == set(made["SuccessExitStatus"].split()), "a second signal is an orderly end too"


@pytest.mark.parametrize(
    ("words", "name", "command"),
    [
        ((), "pontil.service", "launch"),
        (("--role", "mixed", "--port", "80"), "pontil.service", "launch --role mixed --port 80"),
        (("--role", "proxy"), "pontil-proxy.service", "launch --role proxy"),
        (
            ("--role", "decode", "--decode", "cuda:0,1", *JOIN, "--no-prefix-caching"),
            "pontil-decode@.service",
            "launch --role decode --join tcp://10.0.0.1:7000 --insecure --no-prefix-caching --decode %i",
        ),
        (
            ("--model", "speech-demo", "--role", "node", "--node", "speaker", "--place", "speaker=cpu", *JOIN),
            "pontil-speaker-node@.service",
            "launch --model speech-demo --role node --node speaker --join tcp://10.0.0.1:7000 --insecure"
            " --place speaker=%i",
        ),
    ],
)
def test_what_is_launched_is_what_was_asked_for(words: tuple[str, ...], name: str, command: str) -> None:
    unit = unit_of([sys.executable], words, None)
    assert unit.name == name and settings(unit.text())["ExecStart"] == f"{sys.executable} {command}"


def test_a_low_port_is_the_only_privilege() -> None:
    assert written("--port", "80")["CapabilityBoundingSet"] == "CAP_NET_BIND_SERVICE"
    assert written()["CapabilityBoundingSet"] == written()["AmbientCapabilities"] == ""


def test_paths_are_absolute_and_what_is_written_may_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").mkdir()
    made = written("--model", "model", "--usage-log", "usage.db")
    assert f"--model {tmp_path}/model" in made["ExecStart"] and f"--usage-log {tmp_path}/usage.db" in made["ExecStart"]
    assert made["ReadWritePaths"] == str(tmp_path)
    kept = "/data/responses.db"
    assert written("--usage-log", "usage.db", "--response-store", kept)["ReadWritePaths"] == "/data", "the last of two"
    assert "--model smollm2-135m-instruct" in written("--model", "smollm2-135m-instruct")["ExecStart"]


def test_keys_are_copied_for_the_service_alone(tmp_path: Path) -> None:
    make_key_file(tmp_path / "my keys")
    words = ("--role", "decode", "--join", "tcp://10.0.0.1:7000", "--keys", str(tmp_path / "my keys"))
    lines = unit_of([sys.executable], words, None).text().splitlines()
    copies = [COPY.format(f'"{tmp_path}/my keys"', "keys"), f"+/usr/bin/chown -h {LIKE} %t/%N/keys"]
    assert commands(lines, "ExecStartPre") == copies
    assert commands(lines, "ExecReload") == [*copies, "/bin/kill -HUP $MAINPID"], "what a reload reads is new"
    assert commands(lines, "ExecStart")[0].endswith("--decode %i --keys %t/%N/keys")
    with pytest.raises(OptionError, match="cannot be read"):
        written("--keys", str(tmp_path / "none"))


def test_a_link_in_the_services_folder_leads_root_nowhere(tmp_path: Path) -> None:
    """The folder is the service's own, and root writes to it."""
    if os.geteuid():
        pytest.skip("only root can give files to another user")
    folder, victim, secret = tmp_path / "run", tmp_path / "victim", tmp_path / "admin"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    victim.write_text("another's")
    secret.write_text("sk-admin-0123456789")
    secret.chmod(0o600)
    lines = unit_of([sys.executable], ("--admin-key", str(secret)), None).text().splitlines()
    for line in commands(lines, "ExecReload")[:-1]:
        (folder / "admin-key").unlink(missing_ok=True)
        (folder / "admin-key").symlink_to(victim)
        subprocess.run(shlex.split(line.removeprefix("+").replace("%t/%N", str(folder))), check=True)
        if line.startswith("+/usr/bin/cp"):
            copy = (folder / "admin-key").lstat()
            assert stat.S_ISREG(copy.st_mode) and stat.S_IMODE(copy.st_mode) == 0o600
    assert (
        victim.read_text() == "another's"
        and victim.stat().st_uid == 0
        and (folder / "admin-key").lstat().st_uid == 65534
    )


def commands(lines: list[str], kind: str) -> list[str]:
    return [line.removeprefix(f"{kind}=") for line in lines if line.startswith(f"{kind}=")]


def test_every_file_of_keys_can_be_changed_by_a_reload(tmp_path: Path) -> None:  # F5
    """A credential of systemd would keep a key that was taken out of its file until the unit is restarted."""
    for name in ("api", "admin"):
        (tmp_path / name).write_text(f"sk-{name}-0123456789")
        (tmp_path / name).chmod(0o600)
    words = ("--host", "0.0.0.0", "--api-keys", str(tmp_path / "api"), "--admin-key", str(tmp_path / "admin"))
    text = unit_of([sys.executable], words, None).text()
    for flag, name in (("api-keys", "api"), ("admin-key", "admin")):
        assert f"\nExecReload={COPY.format(tmp_path / name, flag)}\n" in text
        assert f"--{flag} %t/%N/{flag}" in text
    assert "LoadCredential" not in text
    with pytest.raises(OptionError, match="--host 0.0.0.0 can be reached"):
        written("--host", "0.0.0.0")


@pytest.mark.parametrize(
    ("word", "quoted"),
    [("a", "a"), ("a b", '"a b"'), ("", '""'), ("50%", "50%%"), ("$HOME", "$$HOME"), ('"', '"\\""'), ("\\", '"\\\\"'),
     ("it's", '"it\'s"'), (";", '";"')],
)  # fmt: skip
def test_words_reach_the_launch_as_they_were(word: str, quoted: str) -> None:
    assert quote(word) == quoted
    with pytest.raises(OptionError, match="control characters"):
        quote("a\nExecStart=/bin/sh")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--port", "x"], OptionError),
        (["--prefil", "cpu"], UsageError),
        (["--role", "decode"], OptionError),
        (["--control", "tcp://10.0.0.1:7000"], OptionError),
        (["--dry-run"], OptionError),
        (["--role", "decode", *JOIN, "--decode", "cpu*2"], OptionError),
        (["--config", "/none.toml"], OptionError),
        (["--placement", "/none.toml"], OptionError),
    ],
)
def test_what_launch_would_refuse_is_not_written(words: list[str], error: type[Exception], tmp_path: Path) -> None:
    done = run("--install-dir", str(tmp_path), "--", *words)
    assert isinstance(done.exception, error) and not list(tmp_path.iterdir())


def test_the_command_says_what_to_start(tmp_path: Path) -> None:
    done = run("--install-dir", str(tmp_path), "--", "--role", "decode", "--decode", "0,cpu:0-3", *JOIN)
    assert done.exit_code == 0 and [path.name for path in tmp_path.iterdir()] == ["pontil-decode@.service"]
    assert done.stdout.rstrip().endswith("--now pontil-decode@0.service pontil-decode@cpu:0-3.service")
    assert run("--install-dir", str(tmp_path / "none"), "--").exit_code == 1
    stage = ("--model", "speech-demo", "--role", "node", "--node", "speaker", "--place", "speaker=0,1", *JOIN)
    done = run("--install-dir", str(tmp_path), "--", *stage)
    assert done.stdout.rstrip().endswith("--now pontil-speaker-node@0.service pontil-speaker-node@1.service")


@pytest.mark.parametrize("folder", ["/tmp/pontil", "/var/tmp/pontil"])
def test_paths_that_a_unit_does_not_see_are_named(folder: str) -> None:
    words = ("--role", "mixed", "--models", f"{folder}/models", "--usage-log", "/var/log/tokens.jsonl")
    unit = unit_of([f"{folder}/bin/pontil"], words, None)
    assert hidden(unit) == [f"{folder}/bin/pontil", f"{folder}/models"]


def test_the_command_says_which_paths_the_unit_does_not_see(tmp_path: Path) -> None:
    done = run("--install-dir", str(tmp_path), "--program", "/tmp/pontil", "--", "--role", "mixed")
    assert done.exit_code == 0 and "does not see /tmp/pontil: move it" in done.stderr
    assert not run("--install-dir", str(tmp_path), "--program", "/usr/bin/pontil", "--", "--role", "mixed").stderr


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a host whose /etc/pontil holds the samples, and a file of keys."""
    monkeypatch.setattr("pontil.launcher.options.sources.load_toml", lambda path: load_toml(SHIPPED / path.name))
    monkeypatch.setattr("pontil.launcher.commands.units.read_key_file", lambda path: None)


@pytest.mark.parametrize("name", LAUNCHES)
def test_the_shipped_units_are_what_the_command_writes(name: str, samples: None) -> None:  # G5
    unit = unit_of(["/usr/local/bin/pontil"], tuple(LAUNCHES[name]), None)
    assert unit.name == name and (SHIPPED / name).read_text() == unit.text()


def test_every_shipped_unit_and_sample_is_known() -> None:
    assert {path.name for path in SHIPPED.iterdir()} == set(LAUNCHES) | SAMPLES
    named = {Path(word).name for words in LAUNCHES.values() for word in words if word.endswith(".toml")}
    assert named == SAMPLES


def test_the_samples_are_of_one_system() -> None:
    """Nothing has to be changed in the units but what stands in these files."""
    one, proxy, worker = (load_toml(SHIPPED / f"{name}.toml") for name in ("pontil", "proxy", "worker"))
    assert one["model"] == proxy["model"] == worker["model"]
    assert f"--join {proxy['control']} " in (SHIPPED / "pontil-decode@.service").read_text()
    for log in (one["usage-log"], proxy["usage-log"]):
        assert not Path(log).is_absolute(), "the unit's own folder may be written to"


def test_a_checkout_has_the_command_that_the_units_start(tmp_path: Path) -> None:
    command = tmp_path / "pontil"
    command.symlink_to(ROOT / "scripts" / "pontil")
    done = subprocess.run(
        [str(command), "config", "--json", "--port", "9000"],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "PYTHON": sys.executable},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert {"name": "port", "value": 9000}.items() <= next(
        row for row in json.loads(done.stdout) if row["name"] == "port"
    ).items()


def verify(path: Path) -> str:
    """Return the complaints of systemd-analyze about this unit."""
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(path)], capture_output=True, text=True, timeout=60
    )
    return "\n".join(line for line in done.stderr.splitlines() if path.name.partition("@")[0] in line)


@pytest.mark.skipif(
    not shutil.which("systemd-analyze"), reason="systemd-analyze is not here (Debian: apt install systemd)"
)
@pytest.mark.parametrize("name", LAUNCHES)
def test_systemd_takes_the_units(name: str, tmp_path: Path, samples: None) -> None:  # G5
    path = tmp_path / name
    text = unit_of([sys.executable], tuple(LAUNCHES[name]), None).text()
    path.write_text(text)
    assert verify(path) == ""
    path.write_text(text.replace("KillMode=mixed", "KillMode=mxed") + "[Nonsense]\n")
    assert "kill mode" in verify(path), "and says so when one is wrong"
