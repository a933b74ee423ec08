# SPDX-License-Identifier: Apache-2.0
import base64

from hypothesis import given
from hypothesis import strategies as st

from pontil.http.openai.sound.sound_reply import SoundPieces
from pontil.runtime.foundation.wav_header import is_wav


@given(st.lists(st.binary(max_size=40)), st.sampled_from(["wav", "pcm16"]))
def test_pieces_can_be_decoded_one_by_one_or_joined(sound: list[bytes], form: str) -> None:
    pieces = SoundPieces("wav" if form == "wav" else "pcm16")
    coded = [pieces.take(pieces.head(24000)), *map(pieces.take, sound), pieces.finish()]
    assert pieces.head(24000) == b"" and pieces.finish() == b""
    whole = b"".join(map(base64.b64decode, coded))
    assert whole == base64.b64decode(b"".join(coded))
    assert whole.endswith(b"".join(sound)) and len(whole) - sum(map(len, sound)) == (44 if form == "wav" else 0)
    assert form == "pcm16" or is_wav(whole)
