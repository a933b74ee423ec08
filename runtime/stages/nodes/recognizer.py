# SPDX-License-Identifier: Apache-2.0
"""Speech to text: Whisper, computed by CTranslate2."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from tokenizers import Tokenizer as WordPieces

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.nodes.libraries import library
from pontil.runtime.stages.nodes.log_mel import SECONDS, log_mel
from pontil.runtime.stages.nodes.wav import Samples, Sound, read_pcm16, read_wav, resample
from pontil.runtime.stages.nodes.windows import RATE

START = ("<|startoftranscript|>",)
ENGLISH = ("<|en|>", "<|transcribe|>")
NO_TIMESTAMPS = ("<|notimestamps|>",)
BEAMS: Final = 5
MOST_TOKENS: Final = 224
# Audio whose samples never exceed this (-60 dB) is silence, for which Whisper would invent words.
SILENCE: Final = 0.001
# The rule of Whisper's authors for windows without speech; the bound on the mean log-probability fits this size.
NO_SPEECH: Final = 0.6
LEAST_LOGPROB: Final = -0.7
# Text that compresses better than this is a loop.
MOST_COMPRESSION: Final = 2.4
# A window ends at the quietest place of its last seconds.
SEARCHED: Final = 8 * RATE
QUIET: Final = RATE // 5


@dataclass(frozen=True, slots=True)
class Transcript:
    """The text of some audio, the seconds of the audio, and the tokens that were generated for it."""

    text: str
    seconds: float
    tokens: int


class Recognizer:
    """A recognizer of English speech. Not for use by several threads at once."""

    def __init__(self, folder: Path, threads: int = 1) -> None:
        """Load the weights. Raises ModelError for missing libraries or weights."""
        runtime: Any = library("ctranslate2")
        self._storage = runtime.StorageView
        try:
            self._model = runtime.models.Whisper(
                str(folder), device="cpu", compute_type="int8", intra_threads=threads, inter_threads=1
            )
            self._words = WordPieces.from_file(str(folder / "tokenizer.json"))
        # The tokenizer's library raises bare exceptions for files that it cannot read.
        except Exception as error:
            raise ModelError(
                f"the recognizer in {folder} cannot be loaded ({error}): remove it, and fetch it again"
            ) from error
        languages = ENGLISH if self._model.is_multilingual else ()
        prompt = [self._words.token_to_id(token) for token in (*START, *languages, *NO_TIMESTAMPS)]
        self._prompt: list[int] = [number for number in prompt if number is not None]

    def recognize(self, audio: bytes, rate: int | None = None) -> Transcript:
        """Return the text of a WAV file, or of bare 16-bit samples of `rate`. Raises RequestError for what is none."""
        sound = read_wav(audio) if rate is None else read_pcm16(audio, rate)
        parts = list(self.parts(sound))
        text = " ".join(part.text for part in parts if part.text)
        return Transcript(text, sound.seconds, sum(part.tokens for part in parts))

    def parts(self, sound: Sound) -> Iterator[Transcript]:
        """Yield the transcript of one window after the other, each of at most 30 seconds."""
        for window in windows(resample(sound, RATE)):
            yield self._recognize(window)

    def _recognize(self, window: Samples) -> Transcript:
        seconds = len(window) / RATE
        if np.abs(window).max(initial=0) < SILENCE:
            return Transcript("", seconds, 0)
        features = self._model.encode(self._storage.from_array(log_mel(window)[None]))
        text, tokens, heard = self._generate(features)
        if heard and compression(text) > MOST_COMPRESSION:
            text, more, heard = self._generate(features, no_repeat_ngram_size=4)
            tokens += more
        return Transcript(text if heard else "", seconds, tokens)

    def _generate(self, features: Any, **options: int) -> tuple[str, int, bool]:
        """Return the text, the number of its tokens, and whether there was speech."""
        (found,) = self._model.generate(
            features,
            [self._prompt],
            beam_size=BEAMS,
            max_length=MOST_TOKENS,
            return_scores=True,
            return_no_speech_prob=True,
            **options,
        )
        ids = found.sequences_ids[0]
        heard = found.no_speech_prob <= NO_SPEECH or found.scores[0] >= LEAST_LOGPROB
        return str(self._words.decode(ids)).strip(), len(ids), heard


def windows(samples: Samples) -> Iterator[Samples]:
    """Cut audio into windows that are no longer than what the network reads at once, at quiet places."""
    most = SECONDS * RATE
    while len(samples) > most:
        cut = most - SEARCHED + quietest(samples[most - SEARCHED : most])
        yield samples[:cut]
        samples = samples[cut:]
    yield samples


def quietest(samples: Samples) -> int:
    """Return the middle of the fifth of a second with the least energy."""
    energy = np.concatenate(([0.0], np.cumsum(samples.astype(np.float64) ** 2)))
    return int(np.argmin(energy[QUIET:] - energy[:-QUIET])) + QUIET // 2


def compression(text: str) -> float:
    raw = text.encode()
    return len(raw) / len(zlib.compress(raw)) if raw else 0.0
