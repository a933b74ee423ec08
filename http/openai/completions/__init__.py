# SPDX-License-Identifier: Apache-2.0
"""Completions, and the endpoints that generate."""
