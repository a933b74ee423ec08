# SPDX-License-Identifier: Apache-2.0
"""A real worker that embeds texts, with a scripted proxy: vectors, counts, deadlines, drains and refusals."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from embedding_site import EmbeddingSite, embedding_config
from gguf import GGMLQuantizationType as Kind
from kernels import CACHE
from packed_loading import packed_files_of
from tiny_bert import write_tiny_bert
from tiny_gguf import write_tiny_gguf
from tiny_llama import write_tiny_llama
from workers import Silent

from pontil.runtime.engine.runner.memory_errors import MEMORY_RAN_OUT
from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.models.embedding_model import SequenceText, TextVectors
from pontil.runtime.probe import packed_share
from pontil.runtime.probe.other_workers import embedder_bytes
from pontil.runtime.wire.messages import AttemptTimes, Cancel, Embed, Embedding, Message
from pontil.runtime.worker.embed.assembly import assemble_embedder
from pontil.runtime.worker.embed.worker import EmbeddingQueue, Waiting
from pontil.runtime.worker.start import packed_weights
from pontil.runtime.worker.start.packed_files import files_of, mappers

Vector = Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))


def pooling_of(made: EmbeddingSite) -> str:
    answers = made.worker.embedder.answers
    assert isinstance(answers, TextVectors)
    return answers.pooling


@pytest.fixture
def made(folder: Path, tmp_path: Path) -> Iterator[EmbeddingSite]:
    one = EmbeddingSite(folder, tmp_path)
    yield one
    one.close()


def test_a_text_gets_one_vector_of_length_one(made: EmbeddingSite) -> None:
    hello = made.proxy.hellos["embed:0"]
    assert (hello.role, hello.model, hello.embedding_size, hello.max_model_len) == ("embed", "vectors", 48, 32)
    made.ask("a", [2, 5, 6, 3])
    made.ask("b", [2, 5, 6, 3], dimensions=7)
    whole, cut = made.vectors("a", "b")
    assert len(whole) == 48 and np.linalg.norm(whole) == pytest.approx(1.0, abs=1e-6)
    assert np.allclose(cut, whole[:7] / np.linalg.norm(whole[:7]), atol=1e-6)
    said = made.proxy.vectors["a"]
    assert (said.prompt_tokens, said.computed_tokens) == (4, 4) and (said.queue_seconds or 0.0) >= 0.0


def test_each_text_tells_of_its_step(made: EmbeddingSite) -> None:
    made.want_times()
    made.ask("a", [2, 5, 6, 3])
    made.until(lambda: made.proxy.times)
    (told,) = made.proxy.times
    begin, end, tokens = told.chunks
    assert (told.request_id, told.scheduled, tokens) == ("a", begin, 4) and 0 <= begin < end <= told.age


def test_no_vector_of_a_step_waits_for_times(made: EmbeddingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    made.want_times()
    sent, hear = list[Message](), made.proxy.hear

    def note(message: Message) -> None:
        sent.append(message)
        hear(message)

    monkeypatch.setattr(made.proxy, "hear", note)
    for name in "abc":
        made.worker.submit(Embed("proxy", made.worker.sockets.incarnation, name, 0, [2, 5, 6, 3]), 0.0)
    made.until(lambda: len(made.proxy.times) == 3)
    told = [type(one) for one in sent if isinstance(one, Embedding | AttemptTimes)]
    assert told == [Embedding] * 3 + [AttemptTimes] * 3
    assert len({tuple(one.chunks) for one in made.proxy.times}) == 1


@pytest.mark.parametrize("kernels", ["auto", "torch"])
def test_another_worker_makes_the_same_bits(folder: Path, tmp_path: Path, kernels: str) -> None:  # C16
    """They have different numbers of cores, and the texts come in other company."""
    texts = {f"t{number}": [2, *range(4, 5 + 3 * number), 3] for number in range(9)}
    found: list[list[bytes]] = []
    for number, (order, cores) in enumerate(((list(texts), (0,)), (list(texts)[::-1], (0, 1)))):
        run = tmp_path / str(number)
        run.mkdir()
        one = EmbeddingSite(folder, run, kernels=kernels, cores=cores)
        for name in order:
            one.ask(name, texts[name])
        found.append([vector.tobytes() for vector in one.vectors(*texts)])
        one.close()
    assert found[0] == found[1]


def test_a_decoder_embeds_by_its_last_token(tmp_path: Path) -> None:
    write_tiny_llama(tmp_path / "llama")
    one = EmbeddingSite(tmp_path / "llama", tmp_path)
    one.ask("a", [5, 6, 7])
    one.ask("b", [6, 5, 7])
    one.ask("long", list(range(3, 200)))
    first, second, long = one.vectors("a", "b", "long")
    assert pooling_of(one) == "last" and len(first) == 64 and not np.array_equal(first, second)
    one.close()
    (tmp_path / "torch").mkdir()
    other = EmbeddingSite(tmp_path / "llama", tmp_path / "torch", kernels="torch")
    other.ask("a", [5, 6, 7])
    other.ask("long", list(range(3, 200)))
    assert all(np.allclose(*both, atol=1e-5) for both in zip(other.vectors("a", "long"), (first, long), strict=True))
    assert other.worker.embedder.kernels != one.worker.embedder.kernels
    other.close()


@pytest.mark.parametrize(
    ("prompt", "fields", "says"),
    [
        ([], {}, "empty"),
        ([-1], {}, "outside the vocabulary"),
        ([1 << 40], {}, "outside the vocabulary"),
        ([5] * 33, {}, "33 tokens exceed the context of 32"),
        ([5], {"dimensions": 49}, "dimensions is 49"),
        ([5], {"dimensions": 0}, "dimensions is 0"),
        ([5, 6], {"types": [0]}, "types of tokens are 1 for 2"),
        ([5, 6], {"types": [0, 2]}, "not below 2"),
        ([5, 6], {"types": [0, -1]}, "not below 2"),
    ],
)
def test_what_cannot_be_computed_is_refused(
    made: EmbeddingSite, prompt: list[int], fields: dict[str, Any], says: str
) -> None:
    made.ask("wrong", prompt, **fields)
    failure = made.failure("wrong")
    assert failure.status == 400 and says in failure.reason


def test_memory_that_runs_out_refuses_the_longest_text(made: EmbeddingSite, monkeypatch: pytest.MonkeyPatch) -> None:
    made.ask("before", [5, 6, 7])
    (expected,) = made.vectors("before")
    vectors = made.worker.embedder.vectors

    def limited(self: object, texts: Sequence[SequenceText]) -> list[bytes]:
        if sum(len(text.ids) for text in texts) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return vectors(texts)

    monkeypatch.setattr(type(made.worker.embedder), "vectors", limited)
    made.ask("long", [4] * 11)
    made.ask("short", [5, 6, 7])
    assert (made.failure("long").reason, made.failure("long").status) == (MEMORY_RAN_OUT, 503)
    assert (made.vectors("short")[0] == expected).all()


def test_a_text_past_its_deadline_is_not_computed(made: EmbeddingSite) -> None:
    made.ask("late", [5], deadline=0.0)
    assert made.failure("late").late and made.worker.link.links[0].told.computed == 0


def test_a_worker_that_leaves_gives_its_texts_back(made: EmbeddingSite) -> None:
    made.worker.queue.push(Waiting(Embed("proxy", made.worker.sockets.incarnation, "a", 0, [5]), 0.0))
    made.loop.leave()
    made.until(lambda: made.proxy.goodbyes and "a" in made.proxy.answers)
    assert made.failure("a").moved


def test_what_was_computed_is_told_in_heartbeats(made: EmbeddingSite) -> None:
    made.ask("a", [2, 5, 3])
    made.vectors("a")
    made.worker.link.links[0].next_send = 0.0
    told = made.loop.load().counters
    assert (told["prompt_tokens_computed"], told["prompt_tokens_computed_before"]) == (3, 0)


def test_each_proxy_is_told_what_the_others_have_there(made: EmbeddingSite, folder: Path, tmp_path: Path) -> None:
    assert made.loop.load().others is None
    run = tmp_path / "two"
    run.mkdir()
    two = EmbeddingSite(folder, run, more_controls=(f"ipc://{run}/control-1",))
    try:
        worker, (first, second) = two.worker, two.worker.link.links
        second.proxy = "second"
        worker.queue.push(Waiting(Embed("second", worker.sockets.incarnation, "a", 0, [5, 6]), 0.0))
        assert two.loop.load(first).others == {"proxies": 1, "in_flight": 1, "taken": 1, "uncomputed": 2}
        assert two.loop.load(second).others == {"proxies": 1, "in_flight": 0, "taken": 0, "uncomputed": 0}
        worker.queue.clear()
    finally:
        two.close()


def test_the_queue_goes_by_priority_then_by_arrival() -> None:
    queue = EmbeddingQueue(most_tokens=4)
    for number, (priority, length) in enumerate(((0, 3), (-1, 2), (0, 1), (0, 9))):
        queue.push(Waiting(Embed("p", "w", str(number), 0, [1] * length, priority=priority), float(number)))
    queue.cancel("2", 0)
    queue.cancel("unknown", 0)
    batches = []
    while queue:
        batches.append([one.message.request_id for one in queue.next_batch()])
    assert batches == [["1"], ["0"], ["3"]]


def test_a_cancelled_text_is_not_computed(made: EmbeddingSite) -> None:
    worker = made.worker
    made.loop.hear(Embed("proxy", worker.sockets.incarnation, "a", 0, [5]), 0.0)
    made.loop.hear(Cancel("proxy", worker.sockets.incarnation, "a", 0), 0.0)
    made.loop.hear(Embed("proxy", "another", "b", 0, [5]), 0.0)
    assert not worker.queue and worker.sockets.stale == 1


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_model_of_another_process_is_mapped_and_makes_the_same_vectors(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Even in a launch that quantizes the model that generates."""
    if kind == "decoder":
        folder = tmp_path / "llama"
        write_tiny_llama(folder)
    texts = [SequenceText(list(range(1, 9))), SequenceText([3], dimensions=16)]
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(CACHE / "kernels")
    vectors = []
    for least in (packed_share.LEAST_BYTES, 0, 0):  # the first is private, as so small a model is
        monkeypatch.setattr(packed_weights, "LEAST_BYTES", least)
        config = embedding_config(folder, tmp_path, cache_dir=str(cache), quantization="gguf")
        made = assemble_embedder(config, Silent())
        vectors.append(made.vectors(texts))
    (file,) = files_of(cache)
    assert vectors[0] == vectors[1] == vectors[2] and file.model == folder.name and os.getpid() in mappers(file.path)
    assert (file.about["quantization"], file.about["dtype"]) == ("none", "float32")


def gguf_embedder(folder: Path, kind: Kind) -> Path:
    write_tiny_llama(folder, hidden_size=256, intermediate_size=256, head_dim=64, tie_word_embeddings=True)
    return write_tiny_gguf(folder / f"{kind.name}.gguf", folder, read_config(folder), kind=kind)


@pytest.mark.parametrize("kind", [Kind.Q4_0, Kind.Q8_0], ids=lambda kind: kind.name)
def test_a_decoder_in_a_gguf_file_keeps_its_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """The vectors are nearly those of the file's numbers unpacked, in a fraction of their memory."""
    model = gguf_embedder(tmp_path, kind)
    texts = [SequenceText(list(range(1, 40))), SequenceText([3], dimensions=16)]
    monkeypatch.setattr(packed_weights, "LEAST_BYTES", 0)
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(CACHE / "kernels")
    made = {}
    for quantization in ("none", "auto", "int8"):  # the last is for the model that generates
        config = embedding_config(model, tmp_path, cache_dir=str(cache), quantization=quantization)
        embedder = assemble_embedder(config, Silent())
        made[quantization] = [np.frombuffer(one, "<f4") for one in embedder.vectors(texts)]
        said = embedder.dtype, embedder.kernels.endswith(" gguf")
        assert said == (("float32", False) if quantization == "none" else ("bfloat16", True))
    for exact, own, again in zip(*made.values(), strict=True):
        assert np.linalg.norm(own) == pytest.approx(1.0, abs=1e-6) and (own == again).all()
        assert exact @ own > 0.999 and (exact != own).any()
    assert sorted(str(file.about["quantization"]) for file in files_of(cache)) == ["gguf", "none"]
    assert embedder_bytes(model) < 0.4 * embedder_bytes(model, quantization="none")


class Changing(Silent):
    """Has a file be written to as soon as some weights are read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def progress(self, text: str, *, waits: bool = False) -> None:
        if text.startswith("reading weights"):
            os.utime(self.path)


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_a_model_that_changes_while_it_is_read_is_refused_and_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    (write_tiny_bert if kind == "encoder" else write_tiny_llama)(tmp_path / "model")
    (file,) = (tmp_path / "model").glob("*.safetensors")
    cache = tmp_path / "cache"
    cache.mkdir()
    (cache / "kernels").symlink_to(CACHE / "kernels")
    monkeypatch.setattr(packed_weights, "LEAST_BYTES", 0)
    config = embedding_config(tmp_path / "model", tmp_path, cache_dir=str(cache))
    with pytest.raises(ModelError, match="was changed while it was read"):
        assemble_embedder(config, Changing(file))
    assert not packed_files_of(cache)
