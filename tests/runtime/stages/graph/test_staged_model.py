# SPDX-License-Identifier: Apache-2.0
"""The names by which a launch knows models of several stages, and what it says where their room is left out."""

from pathlib import Path

import pytest

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.plan import graph_choice
from pontil.launcher.plan.graph_choice import graph_of
from pontil.runtime.foundation.staged_model import ARCHITECTURES, NAMES
from pontil.runtime.stages.graph.catalog import GRAPHS


def test_the_names_are_those_of_the_catalog() -> None:
    assert {graph.name: graph.names for graph in GRAPHS.values()} == NAMES
    assert {graph.architecture for graph in GRAPHS.values()} - {None} == set(ARCHITECTURES)


def test_a_model_of_a_room_that_is_left_out_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graph_choice, "missing", lambda name: "it is left out")
    (tmp_path / "config.json").write_text('{"architectures": ["TinySpeech", 1]}')
    for model in ("speech-demo", NAMES["qwen3-omni"][0], str(tmp_path)):
        with pytest.raises(OptionError, match="it is left out"):
            graph_of(model)
    (tmp_path / "config.json").write_text('{"architectures": ["LlamaForCausalLM", {}]}')
    assert graph_of(str(tmp_path)) is None and graph_of("smollm2-135m-instruct") is None
