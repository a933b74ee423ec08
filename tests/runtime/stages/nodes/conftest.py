# SPDX-License-Identifier: Apache-2.0
"""The real nodes of speech, loaded once. Where their libraries or weights are missing, tests are skipped."""

from pathlib import Path

import pytest

from pontil.runtime.errors import ModelError
from pontil.runtime.loaders.builtin import fetch
from pontil.runtime.loaders.builtin_models import HIBARI, WHISPER, BuiltinModel
from pontil.runtime.stages.nodes.libraries import missing
from pontil.runtime.stages.nodes.recognizer import Recognizer
from pontil.runtime.stages.nodes.speaker import Speaker

CACHE = Path("~/.cache/pontil")


def fetched(model: BuiltinModel) -> Path:
    if missing():
        pytest.skip(f"pontil[speech] is not installed: no {', '.join(missing())}")
    try:
        return fetch(model, CACHE)
    except ModelError as error:
        pytest.skip(f"{model.name} cannot be fetched: {error}")


@pytest.fixture(scope="session")
def voice() -> Path:
    return fetched(HIBARI)


@pytest.fixture(scope="session")
def speaker(voice: Path) -> Speaker:
    return Speaker(voice)


@pytest.fixture(scope="session")
def recognizer() -> Recognizer:
    return Recognizer(fetched(WHISPER))
