# SPDX-License-Identifier: Apache-2.0
"""Launches of several models: each has workers of its own, by the options of all and by those of its table."""

from pathlib import Path
from typing import Any

import pytest

from pontil.launcher.child.child import Child
from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import read_options
from pontil.launcher.plan.topology import Topology, plan
from pontil.runtime.config.proxy_config import proxy_config
from pontil.runtime.config.worker_config import worker_config

FOUR = HostDevices((0, 1, 2, 3), 4, 0)
TWO_NAMES: dict[str, Any] = {"model": ["/models/small", "/models/large.gguf"]}
TABLES = """
[chat]
model = "/models/small"
prefill = "cpu:0"
decode = "cpu:1"

["code.v2"]
model = "/models/large.gguf"
mixed = "cpu:2-3"
max-model-len = 4096
kv-cache-memory = "64MiB"
tool-call-parser = "hermes"
adapter = "sql=/sql"
"""


def topology(machine: HostDevices = FOUR, **flags: Any) -> Topology:
    return plan(read_options(flags), machine, Path("/run/pontil/7"), Path("/cache"))


def tables(tmp_path: Path, text: str = TABLES) -> str:
    (tmp_path / "models.toml").write_text(text)
    return str(tmp_path / "models.toml")


def test_models_share_out_the_cores() -> None:
    made = topology(role="mixed", **TWO_NAMES)
    proxy, small, large = made.children
    assert [(child.name, child.cores, child.group) for child in (small, large)] == [
        ("mixed:0", (0, 1), ""),
        ("large-mixed:0", (2, 3), "large"),
    ]
    (further,) = proxy_config(proxy.config).further_models
    assert (further.name, further.model, made.served) == ("large", "/models/large.gguf", "small")
    told = worker_config(large.config)
    assert (told.model, told.served_model_name, told.further_model) == ("/models/large.gguf", "large", "large")
    assert Child(large, None).row["model"] == "large" and "model" not in Child(small, None).row  # type: ignore[arg-type]
    assert made.prepare.config["models"] == ["/models/small", "/models/large.gguf"]
    assert set(made.prepare.config["demands"]) == {"/models/small", "/models/large.gguf"}
    found = made.with_models({"/models/small": "/a", "/models/large.gguf": "/b"}).children
    assert proxy_config(found[0].config).further_models[0].model == found[2].config["model"] == "/b"


def test_tables_have_workers_and_options_of_their_own(tmp_path: Path) -> None:
    made = topology(models=tables(tmp_path), max_model_len=512)
    proxy, prefill, decode, code = made.children
    assert [child.name for child in made.children] == ["proxy", "prefill:0", "decode:0", "code.v2-mixed:0"]
    assert [child.config["max_model_len"] for child in (prefill, code)] == [512, 4096]
    assert (code.cores, code.config["kv_cache_memory"], code.config["served_model_name"]) == (
        (2, 3),
        64 << 20,
        "code.v2",
    )
    config = proxy_config(proxy.config)
    assert (config.served_model_name, config.tool_call_parser, config.adapter) == ("chat", "auto", ())
    (further,) = config.further_models
    assert (further.tool_call_parser, further.adapter) == ("hermes", ("sql=/sql",))
    assert made.prepare.config["demands"]["/models/large.gguf"]["workers"] == [["cpu"]]
    assert topology(role="proxy", models=tables(tmp_path)).children[0].config["further_models"]


@pytest.mark.parametrize("flags", [{"model": "speech-demo"}, {"model": "/models/small"}, TWO_NAMES])
def test_every_model_that_is_looked_for_has_a_group(flags: dict[str, Any]) -> None:
    config = topology(role="mixed", **flags).prepare.config
    assert config["demands"].keys() == config["groups"].keys() and "" in config["groups"].values()


def test_fast_sums_are_compared_within_a_model(tmp_path: Path) -> None:
    text = '[a]\nmodel = "/a"\nmixed = "cpu:0+cpu:1"\n[b]\nmodel = "/b"\nmixed = "cpu:2"\n'
    topology(models=tables(tmp_path, text), tensor_parallel_arithmetic="fast")


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"model": ["/a/m", "/b/m"]}, "Two models are called m: give them names in a file, with --models"),
        ({"model": ["/a/m", "/a/m"]}, "The model /a/m is there twice"),
        ({"model": ["/x", "/a/m n", "/a/m?n"]}, "named after models, and two of x, m n, m?n are too much alike"),
        ({"model": ["/a/m", "speech-demo"]}, "speech-demo has several stages, and is served alone"),
        ({"role": "prefill", "http": 8100} | TWO_NAMES, "--http is for one model, and there are 2"),
        (
            {"role": "mixed", "adapter": "large=/x"} | TWO_NAMES,
            "An adapter and a model, or another one, are called large",
        ),
        ({"model": []}, "must name a model"),
        ({"model_memory": "1GiB"}, "--model-memory is for several models, and there is one"),
        ({"role": "proxy", "model_memory": "1GiB"} | TWO_NAMES, "for a launch of proxy and workers"),
    ],
)
def test_impossible_launches_are_refused(flags: dict[str, Any], says: str) -> None:
    with pytest.raises(OptionError, match=says.replace("?", r"\?")):
        topology(**{"role": "mixed"} | flags)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no table"),
        ("a = 1", r"a in models.toml is no table: write \[a\]"),
        ("[a.b]\nmixed = 'cpu'", r"\[a.b\] in models.toml is a table in a table: a name with dots needs quotes"),
        ("[a]\nport = 3", r"\[a\] in models.toml has an unknown key 'port'"),
        ("[a]\nmax-model-len = 0", r"max-model-len of \[a\] in models.toml must be a whole number from 1"),
        ("[a]\nmixed = 'cpu'\ndecode = 'cpu'", "workers for both phases, and for one"),
        ("[a]\nmodel = ['b', 'c']", "names several: write a table for each"),
        ("[a", "is not valid TOML"),
    ],
)
def test_wrong_tables_are_refused(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=says):
        topology(models=tables(tmp_path, text))
