# SPDX-License-Identifier: Apache-2.0
"""Architectures, one short file each."""
