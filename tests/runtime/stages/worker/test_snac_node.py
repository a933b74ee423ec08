# SPDX-License-Identifier: Apache-2.0
"""Codes of a tiny SNAC to sound, in the windows of the graph and in a worker."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from node_site import NodeSite, node_config, opened
from numpy.typing import NDArray
from tiny_orpheus import BOOK, TinyOrpheus, write_tiny_orpheus
from workers import Silent

from pontil.runtime.errors import RequestError
from pontil.runtime.stages.graph.catalog import ORPHEUS
from pontil.runtime.stages.nodes.node import NodeInput, TaskInput
from pontil.runtime.stages.nodes.wav import to_pcm16
from pontil.runtime.stages.orpheus.snac_node import SnacNode
from pontil.runtime.stages.worker.node_assembly import make_snac


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> TinyOrpheus:
    return write_tiny_orpheus(tmp_path_factory.mktemp("orpheus") / "model")


@pytest.fixture(scope="module")
def node(tiny: TinyOrpheus) -> Iterator[SnacNode]:
    """The node in one thread, as its worker has it."""
    threads = torch.get_num_threads()
    config = node_config(tiny.path, "snac:0", model=str(tiny.path), graph="orpheus", node="snac")
    node, again = (make_snac(config, Silent()).node for _ in range(2))
    assert isinstance(node, SnacNode) and node.identity == again.identity
    assert node.sample_rate == ORPHEUS.sample_rate
    yield node
    torch.set_num_threads(threads)


def codes(count: int) -> list[int]:
    """Return codes, each of the book of its place in a frame."""
    drawn: list[int] = torch.randint(0, BOOK, (count,), generator=torch.Generator().manual_seed(count)).tolist()
    return [BOOK * (place % 7) + code for place, code in enumerate(drawn)]


def windows(tiny: TinyOrpheus, node: SnacNode, found: list[int]) -> list[bytes]:
    """Return the outputs by plain modules: each frame in the middle of four, the first and the last ones where they
    are."""
    frames = tiny.frames([code + tiny.codes.start for code in found])
    if len(found) < 28:
        return [to_pcm16(tiny.snac.sound(frames, node.snac.noise(frames)).numpy())] if frames else []
    pieces = list[bytes]()
    for last in range(4, len(frames) + 1):
        shown = frames[last - 4 : last]
        sound = tiny.snac.sound(shown, node.snac.noise(shown)).view(4, -1)
        pieces.append(to_pcm16(sound[0 if last == 4 else 1 : 2].flatten().numpy()))
    # A rest that is no frame pushes one frame out of the last window.
    shown = frames[-3 if len(found) % 7 else -4 :]
    sound = tiny.snac.sound(shown, node.snac.noise(shown)).view(len(shown), -1)
    return [*pieces, to_pcm16(sound[-2:].flatten().numpy())]


def close(made: bytes, expected: bytes) -> bool:
    """Return whether two sounds are the same to 1e-4."""
    one, other = (np.frombuffer(data, "<i2").astype(int) for data in (made, expected))
    return one.shape == other.shape and int(np.abs(one - other).max(initial=0)) <= 3


@pytest.mark.parametrize(
    "count, delivered",
    [(0, 0), (6, 0), (7, 0), (13, 0), (28, 0), (28, 1), (30, 0), (34, 2), (35, 0), (63, 0), (63, 3), (66, 7), (66, 6)],
)
def test_a_worker_makes_the_sound_of_all_codes(
    tiny: TinyOrpheus, node: SnacNode, tmp_path: Path, count: int, delivered: int
) -> None:
    """Also one that takes over after some windows: it computes the same samples after them."""
    with opened(NodeSite(tmp_path, node, ORPHEUS, node="snac")) as site:
        maker = site.maker("llm:0")
        name = site.join(maker, delivered=delivered)
        output, found = maker.open(), codes(count)
        for index in range(count):
            site.until(lambda: not output.is_full)
            output.emit(index, "snac_window", np.array(found[index : index + 1], np.int32))
        output.finish(count)
        outputs, expected = site.finish(name), windows(tiny, node, found)
        made = [one.data for one in outputs if one.data]
        assert len(made) == len(expected[delivered:]) and all(map(close, made, expected[delivered:]))
        assert (outputs[0].index, outputs[-1].consumed) == (delivered, count)
        assert len(b"".join(expected)) == 2 * (count // 7) * node.snac.config.frame_samples


def test_the_first_frames_are_heard_when_two_more_are_there(node: SnacNode, tmp_path: Path) -> None:
    with opened(NodeSite(tmp_path, node, ORPHEUS, node="snac")) as site:
        maker = site.maker("llm:0")
        name = site.join(maker)
        output = maker.open()
        for index, code in enumerate(codes(28)):
            output.emit(index, "snac_window", np.array([code], np.int32))
        site.until(lambda: bool(site.outputs(name)))
        (first,) = site.outputs(name)
        assert (len(first.data), first.final) == (2 * 2 * node.snac.config.frame_samples, False)
        output.finish(28)
        site.finish(name)


@pytest.mark.parametrize(
    "item",
    [np.zeros((1, 1), np.int32), np.zeros(1, np.int64), np.full(1, -1, np.int32), np.full(1, 7 * BOOK, np.int32)],
)
def test_other_items_are_refused(node: SnacNode, item: NDArray[Any]) -> None:
    with pytest.raises(RequestError, match="not of this model") as caught:
        next(node.begin(TaskInput()).feed(NodeInput("snac_window", {"codes": [item] * 28})))
    assert caught.value.status == 503


def test_a_text_is_for_the_stage_before(node: SnacNode) -> None:
    with pytest.raises(RequestError, match="makes sound of codes"):
        node.begin(TaskInput(b"text"))
