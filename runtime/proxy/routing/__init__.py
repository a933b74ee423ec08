# SPDX-License-Identifier: Apache-2.0
"""Routing: the choice of a request's workers, and its dispatch to them."""
