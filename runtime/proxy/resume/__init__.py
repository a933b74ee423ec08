# SPDX-License-Identifier: Apache-2.0
"""Streams that can be continued: their records, and requests made of them again."""
