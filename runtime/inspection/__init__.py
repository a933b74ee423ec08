# SPDX-License-Identifier: Apache-2.0
"""Facts about a model before it is launched: whether it is served, what it takes, how fast it will be."""
