# SPDX-License-Identifier: Apache-2.0
"""Every node of the catalog has a worker, and what has none is refused."""

from pathlib import Path

import pytest
from node_site import node_config
from workers import Silent

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.graph.catalog import GRAPHS, TINY_SPEECH, graph_of_architectures
from pontil.runtime.stages.worker.node_assembly import MAKERS, RATE, assemble_node


def test_every_node_of_the_catalog_can_be_made() -> None:
    nodes = {(graph.name, node.name) for graph in GRAPHS.values() for node in graph.nodes if node.kind == "node"}
    assert nodes == set(MAKERS)


def test_tones_need_no_model() -> None:
    config = node_config(Path("/nowhere"), "speaker:0", model="/nowhere")
    model, made = assemble_node(config, Silent())
    assert model is TINY_SPEECH and made.node.sample_rate == RATE == model.sample_rate


def test_a_directory_says_that_its_text_is_spoken_as_tones() -> None:
    assert graph_of_architectures(["LlamaForCausalLM", "TinySpeech"]) is TINY_SPEECH
    assert graph_of_architectures(["LlamaForCausalLM"]) is None


@pytest.mark.parametrize("settings", [{"node": "llm"}, {"graph": "none"}, {"graph": None}])
def test_other_nodes_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ModelError, match="no worker of this version computes"):
        assemble_node(node_config(Path("/nowhere"), "speaker:0", **settings), Silent())
