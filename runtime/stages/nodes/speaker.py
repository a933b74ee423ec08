# SPDX-License-Identifier: Apache-2.0
"""Text to speech: one piece of text at a time, by hibari (a small network that was distilled from Kokoro-82M)."""

import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.nodes.clauses import MOST, pieces_of
from pontil.runtime.stages.nodes.libraries import library
from pontil.runtime.stages.nodes.wav import Samples, to_pcm16

# The network adds noise; one seed for every piece makes a piece's samples depend on its text alone.
SEED: Final = 0
# Samples differ in their last bits where more threads share a product.
THREADS: Final = 1
# The pace of speech that the network was made for, slowest and fastest; 1 is the voice's own.
SLOWEST: Final = 0.5
FASTEST: Final = 2.0
LINK = re.compile(r"!?\[([^\[\]]*)\]\([^()\s]*\)")
# A mark between two spaces is a sign of its own, such as that of a product.
MARKS = re.compile(r"(?<=\S)[*_`#|~]+|[*_`#|~]+(?=\S)|[\[\]{}]+")
BULLET = re.compile(r"^\s*[-+•]\s+")
# Longer numbers have no name: they are read digit by digit.
LONG_NUMBER = re.compile(r"\d[\d,]{14,}")
NOT_LETTERS = re.compile(r"[^A-Za-z .,;:!?']+")


class Speaker:
    """A voice. Not for use by several threads at once."""

    def __init__(self, weights: Path) -> None:
        """Load a voice. Raises ModelError for missing libraries or weights."""
        hibari = library("hibari")
        if not weights.is_file():
            raise ModelError(f"the voice {weights} is not there: fetch it again")
        try:
            self._voice = hibari.Hibari(model=str(weights), threads=THREADS)
        # The exceptions of the library that reads networks have no other base.
        except Exception as error:
            raise ModelError(
                f"the voice {weights} cannot be loaded ({error}): remove it, and fetch it again"
            ) from error
        self.rate = int(self._voice.sample_rate)

    def speak(self, piece: str, speed: float = 1.0) -> bytes:
        """Return the speech for a piece of text as 16-bit samples, the lowest byte first: the same for the same text.
        There are none for text without words."""
        if len(piece) > MOST:
            raise ValueError(f"a piece has {len(piece)} characters, more than {MOST}")
        if not SLOWEST <= speed <= FASTEST:
            raise ValueError(f"the speed {speed} is not between {SLOWEST} and {FASTEST}")
        return self.say(self.phonemes(piece), speed)

    def phonemes(self, piece: str) -> list[str]:
        """Return how to pronounce a piece of text, by sentences: none for text without words."""
        return self._phonemes(spoken(piece))

    def say(self, phonemes: Sequence[str], speed: float = 1.0) -> bytes:
        """Return the speech for these phonemes."""
        return b"".join(to_pcm16(self._sound(phoneme, speed)) for phoneme in phonemes)

    def stream(self, texts: Iterable[str], speed: float = 1.0) -> Iterator[bytes]:
        """Speak a text that arrives in parts: yield the samples of each sentence or clause when it is complete."""
        for piece in pieces_of(texts):
            if samples := self.speak(piece, speed):
                yield samples

    def _sound(self, phonemes: str, speed: float) -> Samples:
        samples: Samples = self._voice.from_phonemes(phonemes, speed, SEED)
        return samples

    def _phonemes(self, text: str) -> list[str]:
        """Return what to pronounce. The library's rules for numbers and signs fail on some odd text: of that, the words
        are read."""
        try:
            found: list[str] = self._voice.phonemize(text)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError):
            found = self._voice.phonemize(NOT_LETTERS.sub(" ", text))
        return found


def spoken(text: str) -> str:
    """Return the words of a text without the signs of Markdown and without characters that nobody can pronounce."""
    text = LINK.sub(r"\1", BULLET.sub("", text))
    text = MARKS.sub(" ", text)
    text = "".join(map(plain, text))
    return LONG_NUMBER.sub(lambda found: " ".join(found[0].replace(",", "")), text)


def plain(character: str) -> str:
    """Return a digit of any script as an ASCII one, and a space for a control character."""
    digit = unicodedata.digit(character, None)
    if digit is not None:
        return str(digit)
    return " " if unicodedata.category(character)[0] == "C" else character
