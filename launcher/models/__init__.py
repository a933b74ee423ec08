# SPDX-License-Identifier: Apache-2.0
"""The models of this host: fetching them, and the files of their packed weights."""
