# SPDX-License-Identifier: Apache-2.0
"""Frames of a tiny Qwen3-Omni to sound, in the chunks of the graph and in a worker."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import kernels
import numpy as np
import pytest
import torch
from node_site import NodeSite, node_config, opened
from numpy.typing import NDArray
from omni_stages import sounds
from tiny_omni import GROUPS, omni_code2wav, write_tiny_omni
from workers import Silent

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.catalog import QWEN3_OMNI, GraphModel
from pontil.runtime.stages.graph.policies import LeftContext
from pontil.runtime.stages.nodes.node import NodeInput, TaskInput
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config
from pontil.runtime.stages.qwen3_omni.directory import code2wav_checkpoint
from pontil.runtime.stages.worker.node_assembly import Code2WavNode, make_code2wav, pcm16
from pontil.runtime.wire.compatibility import objection

POLICY = LeftContext(6, 2, lead=(2, 4))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("omni")
    write_tiny_omni(path)
    return path


@pytest.fixture(scope="module")
def code2wav(folder: Path) -> Iterator[Code2Wav]:
    """The model in one thread, as its worker has it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield omni_code2wav(folder)
    torch.set_num_threads(threads)


def frames(count: int) -> torch.Tensor:
    return torch.randint(0, 64, (count, GROUPS), generator=torch.Generator().manual_seed(count))


def in_small_chunks() -> GraphModel:
    """Return the graph of Qwen3-Omni with chunks that a test can fill."""
    first, second, media = QWEN3_OMNI.graph.connections
    small = replace(second, policy=POLICY, capacity=8)
    return replace(QWEN3_OMNI, graph=replace(QWEN3_OMNI.graph, connections=(first, small, media)))


@pytest.mark.parametrize(
    "count, delivered", [(0, 0), (1, 0), (18, 0), (20, 0), (1, 1), (18, 1), (20, 1), (18, 4), (20, 4)]
)
def test_a_worker_makes_the_sound_of_all_frames(code2wav: Code2Wav, tmp_path: Path, count: int, delivered: int) -> None:
    """Also one that takes over after some chunks: it computes the same samples after them."""
    node = Code2WavNode(code2wav, "c2w")
    with opened(NodeSite(tmp_path, node, in_small_chunks(), node="code2wav")) as site:
        maker = site.maker("talker:0")
        name = site.join(maker, delivered=delivered)
        output, codes = maker.open(), frames(count)
        for index in range(count):
            site.until(lambda: not output.is_full)
            output.emit(index, "code2wav_chunk", codes[index : index + 1].numpy().astype(np.int32))
        output.finish(count)
        outputs = site.finish(name)
        made = [pcm16(part) for part in sounds(code2wav, codes, POLICY)]
        assert [one.data for one in outputs if one.data] == made[delivered:]
        assert (outputs[0].index, outputs[-1].consumed) == (delivered, count)


def test_the_first_sound_comes_after_a_second_of_speech(code2wav: Code2Wav, tmp_path: Path) -> None:
    """In the graph as it is declared, while the stage before goes on."""
    with opened(NodeSite(tmp_path, Code2WavNode(code2wav, "c2w"), QWEN3_OMNI, node="code2wav")) as site:
        maker = site.maker("talker:0")
        name = site.join(maker)
        output, codes = maker.open(), frames(12)
        for index in range(12):
            output.emit(index, "code2wav_chunk", codes[index : index + 1].numpy().astype(np.int32))
        site.until(lambda: bool(site.outputs(name)))
        (first,) = site.outputs(name)
        assert (first.data, first.final) == (pcm16(code2wav.decode(codes)), False)
        output.finish(12)
        site.finish(name)


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros((1, GROUPS + 1), np.int32), np.zeros(GROUPS, np.int32), np.zeros((0, GROUPS), np.int32),
        np.full((1, GROUPS), 64, np.int32), np.full((1, GROUPS), -1, np.int32),
        np.full((1, GROUPS), np.nan, np.float32), np.zeros((1, GROUPS), np.float16),
    ],
)  # fmt: skip
def test_other_frames_are_refused(code2wav: Code2Wav, frame: NDArray[Any]) -> None:
    run = Code2WavNode(code2wav, "c2w").begin(TaskInput())
    with pytest.raises(RequestError, match="not of this model") as caught:
        next(run.feed(NodeInput("code2wav_chunk", {"codes": [np.zeros((1, GROUPS), np.int32), frame]})))
    assert caught.value.status == 503


def test_text_is_not_spoken(code2wav: Code2Wav) -> None:
    with pytest.raises(RequestError, match="its own answers only"):
        Code2WavNode(code2wav, "c2w").begin(TaskInput(b"text"))


def test_loud_samples_are_cut_off_and_others_rounded() -> None:
    samples = torch.tensor([-2.0, -1.0, -0.5, 0.0, 0.25, 1.0, 1.5])
    assert np.frombuffer(pcm16(samples), "<i2").tolist() == [-32767, -32767, -16384, 0, 8192, 32767, 32767]


def test_a_worker_is_known_by_its_weights_and_kernels(code2wav: Code2Wav, folder: Path, tmp_path: Path) -> None:
    library, stored = kernels.opened(), code2wav_checkpoint(folder, read_code2wav_config(folder))
    # Compiled once for all tests.
    (cache := tmp_path / "cache").mkdir()
    (cache / "kernels").symlink_to(kernels.CACHE / "kernels")
    asked = {"model": str(folder), "graph": "qwen3-omni", "node": "code2wav", "cache_dir": str(cache)}
    config = node_config(folder, "code2wav:0", **asked)
    made, other = make_code2wav(config, Silent()), make_code2wav(replace(config, kernels="torch"), Silent())
    assert made.node.identity == other.node.identity == stored.fingerprint
    assert made.node.sample_rate == QWEN3_OMNI.sample_rate
    hellos = []
    for number, one in enumerate((made, other)):
        (tmp_path / str(number)).mkdir()
        with opened(NodeSite(tmp_path / str(number), one.node, QWEN3_OMNI, one.kernels, node="code2wav")) as site:
            hellos.append(site.proxy.hellos["code2wav:0"])
    assert [one.kernels for one in hellos] == [library.name, "torch"]
    refused = objection(*hellos)
    assert refused is not None and "kernels" in refused and "--model" not in refused
