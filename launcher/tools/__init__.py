# SPDX-License-Identifier: Apache-2.0
"""Tools for a running launch: bench, chaos, conformance. Nothing that serves imports them."""
