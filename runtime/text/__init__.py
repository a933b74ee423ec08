# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: tokenizers, incremental detokenization, stop strings, chat templates. No torch."""
