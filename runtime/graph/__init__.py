# SPDX-License-Identifier: Apache-2.0
"""Graphs of models of several stages: walks, partitions, connections, and the state of a request in them. Pure: no
tensors, no sockets, no clock."""
