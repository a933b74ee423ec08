# SPDX-License-Identifier: Apache-2.0
"""The live page: its files, its events, and the changes that its buttons ask for."""
