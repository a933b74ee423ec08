# SPDX-License-Identifier: Apache-2.0
"""Routing: the choice of a request's workers, from their load and the prefixes that they hold."""
