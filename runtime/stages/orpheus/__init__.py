# SPDX-License-Identifier: Apache-2.0
"""The parts of a model that speaks a given text, as Orpheus does: a decoder whose tokens are codes of sound, seven to a
frame, and SNAC (Siuzdak et al., 2024), which makes sound of frames."""
