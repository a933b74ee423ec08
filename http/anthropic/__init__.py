# SPDX-License-Identifier: Apache-2.0
"""Anthropic's Messages API, over the path of a chat."""
