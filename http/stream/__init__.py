# SPDX-License-Identifier: Apache-2.0
"""Replies: their JSON, their events, and streams that can be continued."""
