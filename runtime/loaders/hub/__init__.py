# SPDX-License-Identifier: Apache-2.0
"""Models of a hub: their names, their place in the cache, and their download. No torch here."""
