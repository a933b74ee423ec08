# SPDX-License-Identifier: Apache-2.0
"""Workers with a model of their own: those that embed texts, and those that score pairs of them."""

from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.topology import Topology, plan
from pontil.launcher.supervisor.rollouts.scale_up import kind_named
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.config.worker_config import worker_config
from pontil.runtime.probe.other_workers import OtherWorker

JOIN = "ipc:///run/there/control"
RANKER: dict[str, Any] = {"reranking_model": "/models/ranker"}


def topology(**flags: Any) -> Topology:
    return plan(read_options(flags), HostDevices((0, 1), 2, 0), Path("/run/pontil/7"), Path("/cache"))


def test_all_three_models_are_served_beside_each_other() -> None:
    made = topology(role="mixed", mixed="cpu:0", embed="cpu:1", rerank="cpu:1", share_devices=True, **RANKER)
    proxy, _, embed, rerank = made.children
    served, told = proxy_config(proxy.config), worker_config(rerank.config)
    assert served.text_models == {"embed": "all-minilm-l6-v2", "rerank": "ranker"}
    assert (served.reranking_model, told.model, told.served_model_name) == (
        "/models/ranker",
        "/models/ranker",
        "ranker",
    )
    assert (told.name, told.role, rerank.group, embed.group) == ("rerank:0", "rerank", "rerank", "embed")
    assert made.prepare.config["models"][1:] == ["all-minilm-l6-v2", "/models/ranker"]
    others = [OtherWorker(**other) for other in made.prepare.config["others"]]
    assert [other.title for other in others] == ["embedder", "reranker"]
    assert kind_named("rerank", made.children).covers(rerank) and not kind_named("embed", made.children).covers(rerank)


def test_such_workers_join_a_proxy_elsewhere() -> None:
    (worker,) = topology(role="rerank", join=JOIN, max_model_len=64, served_reranking_model_name="r", **RANKER).children
    told = worker_config(worker.config)
    assert (told.role, told.served_model_name, told.max_model_len) == ("rerank", "r", 64)
    (proxy,) = topology(role="proxy", **RANKER).children
    assert proxy_config(proxy.config).text_models == {"rerank": "ranker"}


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"rerank": "cpu:0", "share_devices": True}, "there is no usual one: name it by --reranking-model"),
        ({"role": "rerank", "join": JOIN}, "there is no usual one"),
        ({"role": "rerank"} | RANKER, "name the proxy's --control with --join"),
        ({"role": "proxy", "rerank": "cpu:0"} | RANKER, "--rerank has no meaning with --role proxy"),
        ({"rerank": "cpu:0+cpu:1", "share_devices": True} | RANKER, "a reranker runs on one"),
        ({"role": "proxy", "embedding_model": "/other/ranker"} | RANKER, "Two models are called ranker"),
    ],
)
def test_what_cannot_be_is_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says):
        topology(**flags)
