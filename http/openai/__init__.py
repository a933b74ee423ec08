# SPDX-License-Identifier: Apache-2.0
"""OpenAI's API, a room for each surface."""
