# SPDX-License-Identifier: Apache-2.0
"""The items of a graph's streams, as workers send and take them."""
