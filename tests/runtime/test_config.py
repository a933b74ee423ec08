# SPDX-License-Identifier: Apache-2.0
"""Configuration is read once, whole, and never changes afterwards (D12)."""

from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.options.options import LaunchOptions
from pontil.runtime.config.proxy_config import ProxyConfig, proxy_config
from pontil.runtime.config.worker_config import WorkerConfig, worker_config

ROOT = Path(__file__).resolve().parents[2]
WORKER: dict[str, Any] = {
    "name": "decode:0", "role": "decode", "device": "cpu", "cores": [0, 1], "model": "m", "served_model_name": "m",
    "control": "ipc:///c", "peer_endpoint": "ipc:///p",
}  # fmt: skip
PROXY: dict[str, Any] = {"model": "m", "served_model_name": "m", "control": "ipc:///c", "version": "0"}


@pytest.mark.parametrize("made", [worker_config(WORKER), proxy_config(PROXY), LaunchOptions()])
def test_nothing_changes_a_configuration(made: Any) -> None:  # D12
    for one in fields(made):
        with pytest.raises(FrozenInstanceError):
            setattr(made, one.name, None)
        hash(getattr(made, one.name))  # nor anything inside it


@pytest.mark.parametrize(("read", "values"), [(worker_config, WORKER), (proxy_config, PROXY)])
def test_an_unknown_or_missing_key_is_our_mistake_and_seen(read: Any, values: dict[str, Any]) -> None:  # D9
    with pytest.raises(TypeError, match="bloc_size"):
        read(values | {"bloc_size": 16})
    with pytest.raises(TypeError, match="model"):
        read({name: value for name, value in values.items() if name != "model"})


def test_only_a_new_process_reads_its_configuration() -> None:  # D12
    readers = {
        str(path.relative_to(ROOT))
        for room in ("launcher", "runtime", "http")
        for path in (ROOT / room).rglob("*.py")
        if any(f"{name}(" in path.read_text() for name in ("worker_config", "proxy_config", *names_of_configs()))
    }
    # The check of a receipt is such a process, which writes its own, and so are a profile and a plan.
    assert readers == {
        "launcher/roles.py",
        "runtime/config/proxy_config.py",
        "runtime/config/worker_config.py",
        "runtime/planner/measuring.py",
        "runtime/planner/planned_site.py",
        "runtime/recompute/verification.py",
    }


def names_of_configs() -> tuple[str, str]:
    return WorkerConfig.__name__, ProxyConfig.__name__
