# SPDX-License-Identifier: Apache-2.0
"""Stop strings, matched where tokens are sampled, so that the worker itself decides the count and the finish reason."""

from pontil.runtime.sampling_params import SamplingParams
from pontil.runtime.tokenizer.detokenizer import Detokenizer, StopStrings
from pontil.runtime.tokenizer.tokenizer import Tokenizer


class TextStops:
    """A matcher that detokenizes one sequence as the proxy will, and returns the stop string that its text has reached.
    The text of the first `min_tokens` tokens never matches, not even as part of a stop string."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams) -> None:
        self.detokenizer = Detokenizer(tokenizer, params.skip_special_tokens)
        self.stops = StopStrings(params.stop, params.include_stop_str_in_output)
        self.early = params.min_tokens

    def feed(self, token_id: int) -> str | None:
        text = self.detokenizer.add([token_id])
        if self.early > 0:
            self.early -= 1
            return None
        self.stops.feed(text)
        return self.stops.matched
