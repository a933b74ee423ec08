# SPDX-License-Identifier: Apache-2.0
"""Parts that every room of the launcher stands on."""
