# SPDX-License-Identifier: Apache-2.0
"""Binds the checkout as package `pontil` before any test module is imported."""

import app  # noqa: F401
