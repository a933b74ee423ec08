# SPDX-License-Identifier: Apache-2.0
"""Requests through several stages, as the proxy conducts them."""
