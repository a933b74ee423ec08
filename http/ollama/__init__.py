# SPDX-License-Identifier: Apache-2.0
"""Ollama's API, over the path of a chat."""
