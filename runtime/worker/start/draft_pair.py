# SPDX-License-Identifier: Apache-2.0
"""The check that one model can guess for another, from their files alone: nothing is loaded, and torch is not."""

import math
from pathlib import Path

from pontil.runtime.errors import DraftModelError, ModelError
from pontil.runtime.loaders.config import read_config
from pontil.runtime.loaders.draft_layers import find_draft_layer
from pontil.runtime.loaders.facts.layout import tensor_shapes
from pontil.runtime.models.config import ModelConfig
from pontil.runtime.tokenizer.tokenizer import Tokenizer, load_tokenizer


def check_pair(target: Path, draft: Path, cache_dir: Path | None = None) -> None:
    """Raise DraftModelError for a draft model that is larger than the model that it guesses for, or that means other
    text by the same ids. A vocabulary may be padded further than the other. A draft layer has its target's tokens and
    needs its sizes."""
    if find_draft_layer(target, draft) is not None:
        return
    try:
        ours, theirs = count_weights(read_config(target)), count_weights(read_config(draft))
        if theirs > ours:
            raise DraftModelError(
                f"--speculative-model {draft.name} is larger ({theirs / 1e6:.0f} million weights) than the model it "
                f"should guess for ({ours / 1e6:.0f} million): give a smaller one, or exchange the two"
            )
        known, guessing = load_tokenizer(target, cache_dir), load_tokenizer(draft, cache_dir)
    except DraftModelError:
        raise
    except ModelError as error:
        raise DraftModelError(f"--speculative-model cannot be used: {error}") from error
    if not same_tokens(known, guessing):
        raise DraftModelError(
            f"--speculative-model {draft.name} has another tokenizer than {target.name}, so its guesses would mean "
            "other text: give a model of the same family"
        )


def count_weights(config: ModelConfig) -> int:
    return sum(math.prod(shape) for shape in tensor_shapes(config).values())


def same_tokens(one: Tokenizer, other: Tokenizer) -> bool:
    count = min(one.vocab_size, other.vocab_size)
    specials = ({token for token in each.special_ids if token < count} for each in (one, other))
    return one.bytes_by_id[:count] == other.bytes_by_id[:count] and next(specials) == next(specials)
