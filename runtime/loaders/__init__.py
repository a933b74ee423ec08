# SPDX-License-Identifier: Apache-2.0
"""Models on disk: finding them, reading their configuration (without torch) and their weights, one file per format."""
