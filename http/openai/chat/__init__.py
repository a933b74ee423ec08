# SPDX-License-Identifier: Apache-2.0
"""Chats: their requests and the shapes of their replies."""
