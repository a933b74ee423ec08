# SPDX-License-Identifier: Apache-2.0
"""A real worker of a node with a scripted proxy and a scripted producer: outputs, ends, faults and their costs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from node_site import RUN, NodeSite, StreamMaker, letters, opened, with_policy
from numpy.typing import NDArray
from random_models import HashStage, counts_of, plain_run, random_model

from pontil.runtime.stages.graph.catalog import SPEECH_DEMO
from pontil.runtime.stages.graph.policies import Fixed, LeftContext
from pontil.runtime.stages.graph.stream_buffer import Chunk, StreamBuffer
from pontil.runtime.stages.nodes.node import AUDIO, NOTHING, NodeInput, Pieces, TaskInput
from pontil.runtime.stages.nodes.recognizer import Transcript
from pontil.runtime.stages.nodes.speech_nodes import RecognizerNode, SpeakerNode
from pontil.runtime.stages.nodes.wav import Sound, write_wav
from pontil.runtime.stages.worker.node_assembly import Tones, tones
from pontil.runtime.wire.messages import Cancel, NodeOutput, Release, RoleChange, StillHere
from pontil.runtime.worker.links.proxy_link import BEAT

CLAUSES = [b"One is here.", b"Two follows it.", b"And three."]
TEXT = b" ".join(CLAUSES)
SPOKEN = [tones(one) for one in CLAUSES]


class SummingNode:
    """A node that makes one output of each chunk: the numbers of its items and of those before them."""

    kind, sample_rate, one_per_chunk, identity = AUDIO, 24000, True, "sums"

    def begin(self, task: TaskInput) -> "SummingNode":
        return self

    def feed(self, given: NodeInput) -> Pieces:
        items, context = given.of("text")
        if items:
            yield b"".join(item.tobytes() for item in (*context, *items))
        return NOTHING


class WordListener:
    """A recognizer that hears a word in each window of a tenth of a second, and nothing in silence."""

    def parts(self, sound: Sound) -> Iterator[Transcript]:
        for number, part in enumerate(np.array_split(sound.samples, 4)):
            yield Transcript(f"w{number}" if np.abs(part).max() else "", 0.1, 1)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[NodeSite]:
    with opened(NodeSite(tmp_path, SpeakerNode(Tones(), "tones"))) as made:
        yield made


def heard(outputs: list[NodeOutput]) -> list[bytes]:
    return [one.data for one in outputs if one.data]


def stream(
    site: NodeSite,
    maker: StreamMaker,
    items: list[NDArray[Any]],
    *,
    late_end: bool = False,
    walks: Sequence[str | None] = (),
) -> None:
    """Emit items as their consumer has room, and then the end; a late end comes when everything before was read."""
    output = maker.open()
    for number, item in enumerate(items):
        site.until(lambda: not output.is_full)
        output.emit(number, walks[number] if walks else "speak", item)
    if late_end:
        site.until(lambda: output.consumed == len(items))
    output.finish(len(items))


def cut(data: bytes, size: int) -> list[NDArray[Any]]:
    return [letters(data[start : start + size]) for start in range(0, len(data), size)]


def test_a_worker_registers_with_the_address_at_which_it_is_reached(site: NodeSite) -> None:
    hello = site.proxy.hellos["speaker:0"]
    assert (hello.role, hello.node, hello.model_fingerprint) == ("node", "speaker", "tones")
    assert hello.peer_endpoint == site.worker.peers_in.endpoint and not hello.peer_endpoint.endswith((":0", ":*"))


def test_a_whole_text_is_spoken_clause_by_clause(site: NodeSite) -> None:
    site.ask("a", data=TEXT)
    outputs = site.finish("a")
    assert heard(outputs) == SPOKEN and len(outputs) == 4
    assert outputs[0].queue_seconds is not None and outputs[1].queue_seconds is None
    assert not site.proxy.ends


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("late_end", [False, True])
def test_a_streamed_text_is_the_same_however_it_is_cut(site: NodeSite, size: int, late_end: bool) -> None:
    maker = site.maker()
    name = site.join(maker)
    stream(site, maker, cut(TEXT, size), late_end=late_end)
    outputs = site.finish(name)
    assert heard(outputs) == SPOKEN and outputs[-1].consumed == len(TEXT)
    end = site.proxy.ends[name]
    assert end.done and end.walk == "speak" and end.next_index == {site.edge: -(-len(TEXT) // size)}
    assert end.token_counts == {site.edge: len(TEXT)}


@pytest.mark.parametrize("items", [[], [b"Hi"], [b"Hi. ", b"There"], [b"", b""], [b" ", b"\xff"]])
@pytest.mark.parametrize("late_end", [False, True])
def test_short_answers_end_with_all_of_their_audio(site: NodeSite, items: list[bytes], late_end: bool) -> None:
    """A byte that is no text is spoken as the mark for one."""
    maker = site.maker()
    name = site.join(maker)
    stream(site, maker, [letters(one) for one in items], late_end=late_end)
    said = b"".join(items).decode(errors="replace").encode().split()
    assert heard(site.finish(name)) == [tones(one) for one in said]


def numbers(count: int) -> list[NDArray[Any]]:
    return [np.full((1, 2), number, np.int32) for number in range(count)]


@pytest.mark.parametrize(("count", "late_end"), [(0, False), (1, True), (3, False), (3, True), (7, False), (7, True)])
def test_chunks_are_those_of_the_policy(tmp_path: Path, count: int, late_end: bool) -> None:
    """A full last chunk whose end comes late is followed by an empty final one."""
    with opened(NodeSite(tmp_path, SummingNode(), with_policy(LeftContext(3, 1), 5))) as site:
        maker = site.maker()
        name = site.join(maker)
        stream(site, maker, numbers(count), late_end=late_end and count % 3 == 0)
        outputs = site.finish(name)
        chunks = [range(max(0, start - 1), min(start + 3, count)) for start in range(0, count, 3)]
        assert heard(outputs) == [b"".join(one.tobytes() for one in numbers(count)[each.start : each.stop])
                                  for each in chunks]  # fmt: skip
        assert outputs[-1].consumed == count


def test_what_a_stage_makes_is_counted_though_nobody_reads_it_any_more(tmp_path: Path) -> None:  # E5
    """The stage behind it has ended, and the report of the attempt that fed it was lost."""
    model, text = random_model(1), [b"%c" % letter for letter in range(97, 109)]
    plain = plain_run(model, text)
    with opened(NodeSite(tmp_path, HashStage(model, "s0"), model, node="s0")) as site:
        maker = site.maker()
        name = site.join(maker)
        stream(site, maker, [letters(one) for one in text], walks=plain.tags["s0"])
        site.finish(name)
        end, right = site.proxy.ends[name], counts_of(plain, "s0")
        assert (end.passes, end.walk, end.produced, end.next_index, end.token_counts) == right and right[2]


@pytest.mark.parametrize("delivered", range(4))
def test_chunks_that_are_delivered_are_not_taken_again(tmp_path: Path, delivered: int) -> None:
    """But the last of them is, which need not be a full one, and the items before it: they are its context."""
    with opened(NodeSite(tmp_path, SummingNode(), with_policy(LeftContext(3, 3), 5))) as site:
        maker = site.maker()
        name = site.join(maker, delivered=delivered, attempt=1)
        stream(site, maker, numbers(8))
        outputs = site.finish(name, attempt=1)
        assert [one.index for one in outputs] == list(range(delivered, 4))
        shown = [numbers(8)[max(0, 3 * number - 3) : 3 * number + 3] for number in range(delivered, 3)]
        assert heard(outputs) == [b"".join(one.tobytes() for one in chunk) for chunk in shown]
        assert outputs[-1].consumed == 8
        assert site.worker.ports.counters()["stream_items"] == 8 - max(0, 3 * delivered - 6)


@pytest.mark.parametrize("delivered", range(4))
def test_clauses_that_are_delivered_are_not_spoken_again(
    site: NodeSite, delivered: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()

    def say(self: Tones, phonemes: list[str]) -> bytes:
        said.append(" ".join(phonemes))
        return tones(said[-1].encode())

    monkeypatch.setattr(Tones, "say", say)
    site.ask("a", attempt=1, data=TEXT, delivered=delivered)
    outputs = site.finish("a", attempt=1)
    assert heard(outputs) == SPOKEN[delivered:] and outputs[-1].index == 3
    assert len(said) == 3 - delivered


def test_a_task_that_comes_twice_is_computed_once(site: NodeSite) -> None:
    site.ask_at_once(*[site.task("a", data=TEXT)] * 2)
    assert heard(site.finish("a")) == SPOKEN


@pytest.mark.parametrize(("priority", "order"), [(0, "abababaaa"), (-1, "bbbaaaaaa"), (1, "aaaaaabbb")])
def test_tasks_have_their_turn_between_pieces(site: NodeSite, priority: int, order: str) -> None:
    """Each step is one clause; the most urgent task is first."""
    steps = site.loop.steps.steps
    site.ask_at_once(
        site.task("a", data=b" ".join([TEXT] * 2)), site.task("b", data=TEXT, priority=priority)
    )  # fmt: skip
    assert len(heard(site.finish("a"))) == 6 and len(heard(site.finish("b"))) == 3
    assert "".join(one.request_id for one in site.proxy.told if one.data) == order
    assert site.loop.steps.steps - steps <= 11


def test_another_worker_makes_the_items_after_the_first_is_gone(site: NodeSite) -> None:
    first, second = site.maker("llm:0"), site.maker("llm:1")
    name = site.join(first)
    output = first.open()
    for number, item in enumerate(cut(TEXT, 4)[:3]):
        output.emit(number, "speak", item)
    site.until(lambda: output.consumed == 3)
    site.makers.remove(first)
    first.close()
    site.rejoin(name, second)
    stream(site, second, cut(TEXT, 4))
    assert heard(site.finish(name)) == SPOKEN


def test_the_proxy_hears_of_items_that_nobody_makes(site: NodeSite) -> None:
    maker = site.maker()
    name = site.join(("gone", "nowhere"))
    site.until(lambda: site.proxy.starved)
    told = site.proxy.starved[0]
    assert (told.request_id, told.edge, told.next_index, told.lost) == (name, site.edge, 0, "gone")
    site.rejoin(name, maker)
    stream(site, maker, cut(TEXT, 9))
    assert heard(site.finish(name)) == SPOKEN


@pytest.mark.parametrize("known", [0, 2])
def test_a_cancelled_task_leaves_nothing(site: NodeSite, known: int) -> None:
    maker = site.maker()
    name = site.join(maker)
    output = maker.open()
    for number in range(known):
        output.emit(number, "speak", letters(b"Hello. "))
    site.until(lambda: output.subscriptions and output.consumed == known)
    site.cancel(name)
    site.until(lambda: site.is_clean and not output.subscriptions)
    assert maker.ports.take(Release("proxy", maker.name, RUN), maker.now)
    assert maker.ports.is_idle and not maker.ports.memory.kept
    assert not any(one.final for one in site.outputs(name))


def test_nothing_is_spoken_after_a_cancel(site: NodeSite) -> None:
    """E15: a client that leaves costs at most the clause that is being spoken."""
    site.ask("a", data=TEXT * 50)
    # Not until an output has come: the socket's thread may bring the first one when all is spoken.
    site.until(lambda: site.loop.steps.steps)
    spoken = site.loop.steps.steps
    site.loop.hear(Cancel("proxy", site.worker.sockets.incarnation, "a", 0), site.loop.now)
    assert site.worker.outlook().is_idle
    site.settle(20)
    assert site.loop.steps.steps == spoken and not any(one.final for one in site.outputs("a"))


def test_items_are_kept_for_another_attempt_until_the_run_ends(site: NodeSite) -> None:
    """The last output of an attempt may be lost with its worker."""
    maker = site.maker()
    stream(site, maker, cut(TEXT, 4))
    first = heard(site.finish(site.join(maker)))
    assert heard(site.finish(site.join(maker, attempt=1, delivered=1), 1)) == first[1:]


def test_a_slow_proxy_stops_the_producer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with opened(NodeSite(tmp_path, SpeakerNode(Tones(), "tones"), with_policy(Fixed(1), 5))) as site:
        maker = site.maker()
        name = site.join(maker)
        output = maker.open()
        site.until(lambda: output.subscriptions)
        with monkeypatch.context() as patched:
            patched.setattr(site.worker.link.sockets[0], "send", lambda message: False)
            site.worker.link.send(StillHere("w", "proxy"))
            while not output.is_full:
                output.emit(output.emitted, "speak", letters(b"Hi. "))
                site.turn()
            site.settle()
            assert output.emitted == 5 and output.is_full and not site.outputs(name)
        site.worker.link.links[0].outbox.clear()
        site.until(lambda: not output.is_full)
        output.finish(output.emitted)
        assert len(heard(site.finish(name))) == 5


def test_a_task_that_waits_for_items_costs_nothing(site: NodeSite, monkeypatch: pytest.MonkeyPatch) -> None:
    maker = site.maker()
    name = site.join(maker)
    output = maker.open()
    site.until(lambda: output.subscriptions)
    looked = list[StreamBuffer]()
    pop = StreamBuffer.pop

    def counted(self: StreamBuffer) -> Chunk | None:
        looked.append(self)
        return pop(self)

    monkeypatch.setattr(StreamBuffer, "pop", counted)
    steps = site.loop.steps.steps
    site.settle(50)
    assert not looked and site.loop.steps.steps == steps
    assert not site.worker.outlook().has_work and site.loop.patience == min(BEAT, site.worker.ports.patience or BEAT)
    output.finish(0)
    assert not heard(site.finish(name)) and looked


def test_deadlines_are_for_tasks_that_wait_for_their_turn(site: NodeSite) -> None:
    site.ask("late", data=TEXT, deadline=0.0)
    assert site.failure("late").late
    maker = site.maker()
    name = site.join(maker, deadline=0.0)
    stream(site, maker, cut(TEXT, 9))
    assert heard(site.finish(name)) == SPOKEN


def test_a_worker_that_leaves_gives_its_tasks_back(site: NodeSite) -> None:
    maker = site.maker()
    name = site.join(maker)
    output = maker.open()
    site.until(lambda: output.subscriptions)
    site.loop.leave()
    assert site.failure(name).moved
    site.until(lambda: site.proxy.goodbyes and not output.subscriptions)


def test_a_worker_drains(site: NodeSite) -> None:
    maker = site.maker()
    name = site.join(maker)
    site.until(lambda: site.worker.tasks)
    site.worker.link.turn_to("node", True)
    site.until(lambda: site.worker.link.is_known)
    assert (
        isinstance(site.proxy.duties[site.worker.sockets.incarnation], RoleChange) and not site.worker.outlook().is_idle
    )
    stream(site, maker, cut(TEXT, 9))
    site.finish(name)
    site.until(lambda: site.worker.outlook().is_idle)


def test_tasks_of_a_proxy_that_is_gone_are_dropped(site: NodeSite) -> None:
    maker = site.maker()
    site.join(maker)
    output = maker.open()
    site.until(lambda: output.subscriptions)
    site.loop.hear(StillHere("another", site.worker.sockets.incarnation), site.loop.now)
    assert not site.worker.tasks
    site.until(lambda: site.worker.link.proxy is not None and not output.subscriptions)


@pytest.mark.parametrize(
    ("fields", "says", "status"),
    [
        ({"node": "recognizer"}, "this worker computes speaker, not recognizer", 503),
        ({"graph": {"run": "r"}}, "malformed", 503),
        ({"graph": {"run": "r", "node": "speaker", "secret": "s", "outputs": [], "inputs": {"a/b/c": []}, "walks": [],
                    "positions": None, "answer": [], "options": {}}}, "no stream 'a/b/c'", 503),
    ],
)  # fmt: skip
def test_a_task_that_does_not_fit_is_refused(site: NodeSite, fields: dict[str, Any], says: str, status: int) -> None:
    site.ask("wrong", **fields)
    failure = site.failure("wrong")
    assert failure.status == status and says in failure.reason


def test_a_stream_that_contradicts_itself_fails_its_task(site: NodeSite) -> None:
    maker = site.maker()
    name = site.join(maker)
    output = maker.open()
    for number in range(2):
        output.emit(number, "speak", letters(b"Hi. "))
    site.until(lambda: output.consumed == 2)
    output.finish(1)
    failure = site.failure(name)
    assert failure.status == 503 and "is said to end before 1" in failure.reason


def test_a_recording_is_text_window_by_window(tmp_path: Path) -> None:
    with opened(
        NodeSite(tmp_path, RecognizerNode(WordListener(), "words"), SPEECH_DEMO, node="recognizer")
    ) as site:  # fmt: skip
        loud, still = np.full(800, 9000, "<i2").tobytes(), np.zeros(800, "<i2").tobytes()
        site.ask("a", data=write_wav(still + loud + still + loud, 16000))
        assert [one.data for one in site.finish("a")] == [b"w1", b" w3", b""]
        site.ask("b", data=write_wav(still * 4, 16000))
        assert [one.data for one in site.finish("b")] == [b""]
        for name, data, says in (
            ("none", None, "there is no recording"),
            ("mp3", b"ID3" + bytes(100), "not a WAV file"),
            ("cut", write_wav(loud, 16000)[:30], "WAV"),
        ):
            site.ask(name, data=data)
            failure = site.failure(name)
            assert failure.status == 400 and says in failure.reason


@pytest.mark.parametrize("delivered", [-1, 1 << 62])
def test_outputs_that_no_client_can_have_are_refused_at_once(site: NodeSite, delivered: int) -> None:
    site.join(site.maker(), delivered=delivered)
    assert f"cannot have {delivered} outputs" in site.failure(f"{RUN}.speaker").reason
