# SPDX-License-Identifier: Apache-2.0
"""Model architectures over shared layers, one file each."""
