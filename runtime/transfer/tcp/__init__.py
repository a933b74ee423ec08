# SPDX-License-Identifier: Apache-2.0
"""Transfers over TCP, encrypted where they cross a network."""
