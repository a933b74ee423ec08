# SPDX-License-Identifier: Apache-2.0
"""Workers that are forked from one process, which has imported what they need."""
