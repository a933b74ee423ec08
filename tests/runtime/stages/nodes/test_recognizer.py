# SPDX-License-Identifier: Apache-2.0
"""The work around the recognizer's network: features, windows, loops. The network on noise and silence."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from pontil.runtime.errors import ModelError, RequestError
from pontil.runtime.stages.nodes.libraries import missing
from pontil.runtime.stages.nodes.log_mel import SECONDS, log_mel
from pontil.runtime.stages.nodes.recognizer import MOST_COMPRESSION, QUIET, SEARCHED, Recognizer, compression, windows
from pontil.runtime.stages.nodes.wav import Samples, to_pcm16, write_wav
from pontil.runtime.stages.nodes.windows import RATE

ROOT = Path(__file__).resolve().parents[4]


def noise(seconds: float, level: float = 0.1) -> Samples:
    return np.random.default_rng(5).normal(0, level, round(seconds * RATE)).astype(np.float32)


@pytest.mark.parametrize("samples", [noise(3.3), noise(SECONDS), noise(0), np.sin(np.arange(8000, dtype=np.float32))])
def test_features_are_those_of_transformers(samples: Samples) -> None:
    expected = WhisperFeatureExtractor()(samples, sampling_rate=RATE, return_tensors="np").input_features[0]
    assert log_mel(samples).shape == (80, 3000)
    assert np.abs(log_mel(samples) - expected).max() < 1e-4


def test_a_window_ends_at_the_quietest_place() -> None:
    samples = np.ones(45 * RATE, np.float32)
    samples[25 * RATE : 25 * RATE + QUIET] = 0
    cut = 25 * RATE + QUIET // 2
    assert [len(window) for window in windows(samples)] == [cut, 45 * RATE - cut]


@given(st.integers(0, 100 * 160), st.integers(0, 1000))
def test_windows_are_the_audio(hundreds: int, seed: int) -> None:
    samples = np.random.default_rng(seed).random(hundreds * 100, np.float32)
    parts = list(windows(samples))
    assert np.array_equal(np.concatenate(parts), samples)
    assert all(len(part) <= SECONDS * RATE for part in parts)
    assert all(len(part) >= SECONDS * RATE - SEARCHED for part in parts[:-1])


def test_a_loop_compresses() -> None:
    assert compression("I will go there, and then I will see whom I can find.") < MOST_COMPRESSION
    assert compression("and then " * 30) > MOST_COMPRESSION
    assert compression("") == 0


def test_neither_silence_nor_noise_has_words(recognizer: Recognizer) -> None:
    """Whisper itself writes "you" for silence."""
    assert recognizer.recognize(to_pcm16(np.zeros(RATE, np.float32)), RATE).text == ""
    heard = recognizer.recognize(to_pcm16(noise(4)), RATE)
    assert (heard.text, heard.seconds) == ("", 4)
    assert recognizer.recognize(write_wav(to_pcm16(noise(1, 0.0002)), RATE)).tokens == 0


def test_what_is_no_audio_is_refused(recognizer: Recognizer) -> None:
    with pytest.raises(RequestError, match="not a WAV file"):
        recognizer.recognize(b"hello")


@pytest.mark.skipif("ctranslate2" in missing(), reason="ctranslate2 of pontil[speech] is not installed")
def test_missing_weights_are_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"the recognizer in {tmp_path} cannot be loaded"):
        Recognizer(tmp_path)


def test_no_torch_and_no_library_before_a_node_is_made() -> None:
    code = (
        "import app, sys, pontil.runtime.stages.nodes.recognizer, pontil.runtime.stages.nodes.speaker; "
        "sys.exit(bool({'torch', 'ctranslate2', 'hibari', 'onnxruntime', 'soxr'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0
