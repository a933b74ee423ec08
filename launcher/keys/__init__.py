# SPDX-License-Identifier: Apache-2.0
"""Secrets on disk: API keys of clients, the key file that the hosts of a system share, headers for a collector."""
