# SPDX-License-Identifier: Apache-2.0
"""Load by role: how many workers of each the load needs, and roles that follow it."""
