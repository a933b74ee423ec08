# SPDX-License-Identifier: Apache-2.0
"""Facts that every format of a checkpoint must state. No torch here."""
