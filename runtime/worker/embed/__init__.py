# SPDX-License-Identifier: Apache-2.0
"""Workers that embed texts."""
