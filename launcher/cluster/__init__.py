# SPDX-License-Identifier: Apache-2.0
"""Launches whose workers another engine places: one launch for each worker, on nodes that Ray chooses."""
