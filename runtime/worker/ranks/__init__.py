# SPDX-License-Identifier: Apache-2.0
"""A worker of several processes: the driver, rank 0, and its followers."""
