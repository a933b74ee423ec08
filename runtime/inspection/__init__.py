# SPDX-License-Identifier: Apache-2.0
"""What can be told of a model before it is launched: whether it is served, what it takes, how fast it will be."""
