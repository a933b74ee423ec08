# SPDX-License-Identifier: Apache-2.0
"""Construction of the node of a worker without tokens, up to a first run."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from pontil.gpu_ops.kernels.layer import can_compute
from pontil.runtime.config.worker_config import WorkerConfig
from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.reporting import Reporter
from pontil.runtime.stages.graph.catalog import GRAPHS, ORPHEUS, QWEN3_OMNI, SPEECH_DEMO, TINY_SPEECH, GraphModel
from pontil.runtime.stages.nodes.node import AUDIO, NOTHING, NodeInput, Pieces, StageNode, TaskInput
from pontil.runtime.stages.nodes.recognizer import Recognizer
from pontil.runtime.stages.nodes.speaker import Speaker
from pontil.runtime.stages.nodes.speech_nodes import RecognizerNode, SpeakerNode, identity_of
from pontil.runtime.stages.orpheus.snac_loading import load_snac, snac_identity
from pontil.runtime.stages.orpheus.snac_node import SnacNode
from pontil.runtime.stages.qwen3_omni.code2wav import Code2Wav
from pontil.runtime.stages.qwen3_omni.config import SAMPLE_RATE
from pontil.runtime.stages.qwen3_omni.config_file import read_code2wav_config
from pontil.runtime.stages.qwen3_omni.directory import code2wav_checkpoint
from pontil.runtime.stages.qwen3_omni.encoders.loading import load_media_node, product_inputs
from pontil.runtime.worker.start.loading import PartWeights, find_kernels, name_of_kernels
from pontil.runtime.worker.start.packed_guard import PackedGuard

LOUDEST = 32767


class Code2WavNode:
    """A StageNode. Each chunk of frames is one output; the connection's policy cuts them alike for every attempt."""

    kind, sample_rate, one_per_chunk = AUDIO, SAMPLE_RATE, True

    def __init__(self, code2wav: Code2Wav, identity: str) -> None:
        self.code2wav, self.identity = code2wav, identity

    def begin(self, task: TaskInput) -> "FrameRun":
        if task.data is not None:
            raise RequestError("this model speaks its own answers only: use a chat with audio")
        return FrameRun(self.code2wav)


class FrameRun:
    """One answer's sound."""

    def __init__(self, code2wav: Code2Wav) -> None:
        self.code2wav = code2wav

    def feed(self, given: NodeInput) -> Pieces:
        items, context = given.of("codes")
        if not items:
            return NOTHING
        frames, config = [*context, *items], self.code2wav.config
        alike = all(frame.dtype == np.int32 and frame.shape == (1, config.groups) for frame in frames)
        if not alike or any(frame.min() < 0 or frame.max() >= config.codebook_size for frame in frames):
            raise RequestError("a frame is not of this model", status=503)
        yield pcm16(self.code2wav.decode(torch.from_numpy(np.concatenate(frames).astype(np.int64)), len(context)))
        return NOTHING


def pcm16(samples: torch.Tensor) -> bytes:
    """Return samples in [-1, 1] as 16-bit numbers, the lowest byte first."""
    return (samples.clamp(-1, 1) * LOUDEST).round().to(torch.int16).numpy().astype("<i2").tobytes()


RATE: Final = 24000
# The samples of one byte.
SAMPLES: Final = 8
PEAK: Final = 64
# A hash would say no more: these samples are made of the text alone.
TONES: Final = "tones-1"


class Tones:
    """A voice for tests, and for demonstrations without downloads."""

    rate = RATE

    def phonemes(self, piece: str) -> list[str]:
        """Return the words; white space has no sound."""
        return piece.split()

    def say(self, phonemes: Sequence[str]) -> bytes:
        return tones(" ".join(phonemes).encode())


def tones(data: bytes) -> bytes:
    """Return the samples of some bytes: a rising line for each, steeper the greater the byte."""
    steps = np.arange(1, SAMPLES + 1, dtype="<i2") * (PEAK // SAMPLES)
    samples: NDArray[np.int16] = np.frombuffer(data, np.uint8).astype("<i2")[:, None] * steps
    return samples.astype("<i2").tobytes()


@dataclass(frozen=True, slots=True)
class MadeNode:
    """A node, the guard for the file that has its weights, if there is one, and the name of what computes it, where
    that can be chosen."""

    node: StageNode
    guard: PackedGuard = field(default_factory=PackedGuard)
    kernels: str | None = None


def assemble_node(config: WorkerConfig, report: Reporter) -> tuple[GraphModel, MadeNode]:
    """Load the node that the configuration names. Raises ModelError."""
    graph, node = config.graph or "", config.node or ""
    if graph not in GRAPHS or (graph, node) not in MAKERS:
        raise ModelError(f"no worker of this version computes the stage {node!r} of {graph!r}")
    report.progress(f"loading the {node}")
    return GRAPHS[graph], MAKERS[graph, node](config, report)


def make_recognizer(config: WorkerConfig, report: Reporter) -> MadeNode:
    recognizer = Recognizer(config.model_path, max(1, len(config.cores)))
    return MadeNode(RecognizerNode(recognizer, identity_of(config.model_path)))


def make_speaker(config: WorkerConfig, report: Reporter) -> MadeNode:
    return MadeNode(SpeakerNode(Speaker(config.model_path), identity_of(config.model_path)))


def make_tones(config: WorkerConfig, report: Reporter) -> MadeNode:
    return MadeNode(SpeakerNode(Tones(), TONES))


def make_code2wav(config: WorkerConfig, report: Reporter) -> MadeNode:
    """Load Code2Wav, in float32 whatever the type of its weights, on one of torch's threads: sums by more would depend
    on their number."""
    torch.set_num_threads(1)
    shape, device = read_code2wav_config(config.model_path), torch.device("cpu")
    checkpoint = code2wav_checkpoint(config.model_path, shape)
    kernels = find_kernels(config, can_compute(torch.float32, *shape.product_inputs), report)
    parts = PartWeights(config, device, torch.float32, kernels, report, config.weights_memory)
    code2wav = Code2Wav(shape, parts.read(checkpoint, "code2wav"))
    node = Code2WavNode(code2wav, checkpoint.fingerprint)
    return MadeNode(node, PackedGuard(*parts.mapped), name_of_kernels(device, kernels))


def make_encoder(config: WorkerConfig, report: Reporter) -> MadeNode:
    """Load the encoders of recordings and images, in float32 and on one thread like Code2Wav."""
    torch.set_num_threads(1)
    path, device = config.model_path, torch.device("cpu")
    kernels = find_kernels(config, can_compute(torch.float32, *product_inputs(path)), report)
    parts = PartWeights(config, device, torch.float32, kernels, report, config.weights_memory)
    node = load_media_node(path, parts.read)
    return MadeNode(node, PackedGuard(*parts.mapped), name_of_kernels(device, kernels))


def make_snac(config: WorkerConfig, report: Reporter) -> MadeNode:
    """Load SNAC, on one thread like Code2Wav."""
    torch.set_num_threads(1)
    return MadeNode(SnacNode(load_snac(config.model_path), snac_identity(config.model_path)))


MAKERS: Mapping[tuple[str, str], Callable[[WorkerConfig, Reporter], MadeNode]] = MappingProxyType(
    {
        (QWEN3_OMNI.name, "encoder"): make_encoder,
        (QWEN3_OMNI.name, "code2wav"): make_code2wav,
        (ORPHEUS.name, "snac"): make_snac,
        (SPEECH_DEMO.name, "recognizer"): make_recognizer,
        (SPEECH_DEMO.name, "speaker"): make_speaker,
        (TINY_SPEECH.name, "speaker"): make_tones,
    }
)
