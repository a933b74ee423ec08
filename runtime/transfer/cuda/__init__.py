# SPDX-License-Identifier: Apache-2.0
"""Transfers between GPUs of one host."""
