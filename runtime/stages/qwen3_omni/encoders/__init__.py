# SPDX-License-Identifier: Apache-2.0
"""The encoders of Qwen3-Omni: recordings and images to rows of the Thinker's prompt."""
