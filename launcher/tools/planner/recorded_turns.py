# SPDX-License-Identifier: Apache-2.0
"""The check of recorded turns: a plan of what was recorded in part would be one of something else."""

from pathlib import Path

from pontil.launcher.foundation.errors import OptionError
from pontil.launcher.tools.bench.questions import read_turns


def check_lengths(path: Path | None) -> None:
    """Raise OptionError for recorded turns of which some are missing: a prompt cannot share more than was there."""
    if path is None:
        return
    try:
        turns = read_turns(path)
    except ValueError as error:
        raise OptionError(f"--lengths: {error}") from None
    known = dict[int, int]()
    for number, turn in enumerate(turns, 2):
        prompt, answer, shared = turn["prompt_tokens"], turn["output_tokens"], turn["shared_prefix_tokens"]
        if prompt < 1 or answer < 1 or not 0 <= shared <= prompt:
            raise OptionError(f"--lengths: {path} has a turn in line {number} with sizes that no turn can have.")
        if shared > known.get(turn["conversation"], 0):
            raise OptionError(
                f"--lengths: {path} has a hole before line {number}, whose prompt begins with {shared} tokens that no "
                f"earlier turn of conversation {turn['conversation']} has."
            )
        known[turn["conversation"]] = prompt + answer
