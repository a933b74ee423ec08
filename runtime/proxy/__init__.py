# SPDX-License-Identifier: Apache-2.0
"""The router: which workers there are, which of them serves a request, and what comes back from them. No torch."""
