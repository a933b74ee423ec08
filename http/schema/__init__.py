# SPDX-License-Identifier: Apache-2.0
"""Declarations of parameters, and the reading of fields by them."""
