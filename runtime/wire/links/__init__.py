# SPDX-License-Identifier: Apache-2.0
"""Sockets, their keys and their connections."""
