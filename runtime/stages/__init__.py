# SPDX-License-Identifier: Apache-2.0
"""Models of several stages (docs/decisions/051)."""
