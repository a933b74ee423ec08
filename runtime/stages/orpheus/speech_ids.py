# SPDX-License-Identifier: Apache-2.0
"""The ids of a vocabulary that are codes of sound."""

from dataclasses import dataclass
from pathlib import Path

from pontil.runtime.errors import ModelError
from pontil.runtime.stages.orpheus.config import FRAME_CODES, read_snac_config
from pontil.runtime.tokenizer.tokenizer import load_tokenizer

FIRST_CODE, SPEECH_END = "<custom_token_10>", "<custom_token_2>"


@dataclass(frozen=True, slots=True)
class SpeechIds:
    """The ids that are `codes`, a codebook for each place of a frame, and the one that ends speech."""

    codes: range
    end: int


def read_speech_ids(directory: Path) -> SpeechIds:
    """Find the ids in a model's tokenizer. Raises ModelError for one without them."""
    tokenizer = load_tokenizer(directory)
    first, end = tokenizer.token_id(FIRST_CODE), tokenizer.token_id(SPEECH_END)
    count = FRAME_CODES * read_snac_config(directory).codebook_size
    if first is None or end is None or first + count > tokenizer.vocab_size:
        raise ModelError(
            f"{directory} has no tokens from {FIRST_CODE} on for {count} codes of sound and {SPEECH_END} for their end:"
            " fetch the model again, with the SNAC that it was made for"
        )
    return SpeechIds(range(first, first + count), end)
