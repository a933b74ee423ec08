# SPDX-License-Identifier: Apache-2.0
"""The plan of the proxies of a launch."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from recorded_profile import small_profile

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.config.worker_config import worker_config

JOIN = "ipc:///run/there/control"


def topology(**flags: Any) -> Topology:
    return plan(read_options(flags), HostDevices((0, 1), 2, 0), Path("/run/pontil/7"), Path("/cache"))


def test_several_proxies_share_a_port_and_have_an_endpoint_each() -> None:
    made = topology(proxies="3", usage_log="/u.db", usage_log_days="30", slow_log="2s")
    proxies = [child for child in made.children if child.is_proxy]
    assert [child.name for child in proxies] == ["proxy:0", "proxy:1", "proxy:2"]
    taken = [proxy_config(json.loads(json.dumps(child.config))) for child in proxies]
    assert made.controls == tuple(one.control for one in taken) and len(set(made.controls)) == 3
    assert [one.number for one in taken] == [0, 1, 2] and {one.proxies for one in taken} == {3}
    assert (
        len({(one.port, one.usage_log, one.usage_log_days, one.shared_folder, one.resume_folder) for one in taken}) == 1
    )
    assert {one.slow_log for one in taken} == {2.0}
    assert len({one.in_flight_bodies for one in taken}) == 3
    workers = [worker_config(child.config) for child in made.children if not child.is_proxy]
    assert {worker.controls for worker in workers} == {made.controls}
    (alone,) = [proxy_config(child.config) for child in topology(resume_window="0").children if child.is_proxy]
    assert (alone.name, alone.shared_folder, alone.resume_folder) == ("proxy", None, None)


def test_workers_join_every_proxy_that_is_named() -> None:
    both = "tcp://127.0.0.1:7000,tcp://127.0.0.1:7001"
    made = topology(role="decode", join=both)
    assert worker_config(made.children[0].config).controls == tuple(both.split(","))
    assert topology(role="proxy", proxies="2", control="tcp://127.0.0.1:7000").controls == tuple(both.split(","))
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"role": "decode", "join": both, "proxies": "3"}, "name every proxy's"),
        ({"role": "decode", "join": f"{JOIN},{JOIN}"}, "each address once"),
        ({"proxies": "2", "model": "speech-demo"}, "several stages"),
        ({"role": "proxy", "proxies": "3", "control": "tcp://127.0.0.1:65534"}, "as many ports"),
        ({"role": "decode", "join": ",".join(f"ipc:///run/{number}" for number in range(17))}, "16 is the most"),
        ({"proxies": "0"}, "proxies"),
    )
    for flags, words in refused:
        with pytest.raises(OptionError, match=words):
            topology(**flags)


def test_traces_need_their_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    assert topology(otlp_traces_endpoint="http://127.0.0.1").children[0].config["otlp_traces_endpoint"]
    for name in [name for name in sys.modules if name.startswith("opentelemetry.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(OptionError) as refusal:
        topology(otlp_traces_endpoint="http://127.0.0.1")
    assert "run `pip install pontil[otel]`" in refusal.value.message and refusal.value.exit_code == 2
    assert topology().children[0].config["otlp_traces_endpoint"] is None


def test_a_profile_and_roles_that_follow_the_load_are_checked(tmp_path: Path) -> None:
    path = tmp_path / "small.json"
    path.write_text(small_profile().text())
    config = topology(profile=str(path), balance="auto", ttft_limit="1000", tpot_limit="40").children[0].config
    assert (config["profile"], config["balance"], config["ttft_limit"], config["tpot_limit"]) == (
        str(path), "auto", 1000.0, 40.0,
    )  # fmt: skip
    wrong = tmp_path / "wrong.json"
    wrong.write_text(path.read_text().replace("small", "other"))
    refused: tuple[tuple[dict[str, Any], str], ...] = (
        ({"profile": str(wrong)}, "its digest is another one"),
        ({"profile": str(tmp_path / "missing.json")}, "cannot be read: No such file"),
        ({"balance": "auto", "disagg": "never"}, "--disagg never has no such"),
    )
    for flags, words in refused:
        with pytest.raises(OptionError, match=words):
            topology(**flags)
