# SPDX-License-Identifier: Apache-2.0
"""Requests in flight: their state, answers and streams."""
