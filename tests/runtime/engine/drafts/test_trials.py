# SPDX-License-Identifier: Apache-2.0
"""Trials of a draft model that is not expected to help."""

from pontil.runtime.engine.drafts.policy import FIRST_PAUSE, MOST_PAUSE, TRIES, Trials


def test_a_trial_is_short_and_pauses_grow() -> None:
    trials = Trials()
    pauses = []
    for _ in range(6):
        guesses = 0
        while trials.goes_on(True, True):
            trials.guess()
            guesses += 1
        assert guesses == TRIES
        pauses.append(trials.rest)
        assert not trials.goes_on(True, True)
        for _ in range(trials.rest):
            trials.step()
    assert pauses == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, MOST_PAUSE, MOST_PAUSE, MOST_PAUSE]
    assert not trials.goes_on(False, True) and trials.goes_on(True, True)
    trials.succeed()
    assert trials.pause == MOST_PAUSE // 2 and trials.left is None
    assert not trials.goes_on(True, False), "what cannot be paid ends it"
