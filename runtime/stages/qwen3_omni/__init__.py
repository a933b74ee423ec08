# SPDX-License-Identifier: Apache-2.0
"""The parts of Qwen3-Omni (Xu et al., 2025) that make speech. The Thinker, which makes text, is an ordinary decoder.

One request passes through three stages; `docs/internals/qwen3_omni.md` has the calls of each:

Thinker   token ids to text, and for each computed position its states (`HiddenStates`)
Talker    `talker_input.TalkerInput` makes its prompt and its text of these; for each frame the decoder gives a first
          code, and `talker.Talker.frames` the other codes and the next input
Code2Wav  chunks of frames to samples: `code2wav.Code2Wav`
"""
