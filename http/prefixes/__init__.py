# SPDX-License-Identifier: Apache-2.0
"""Leases on prefixes: the routes of /v1/prefixes."""
