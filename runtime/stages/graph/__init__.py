# SPDX-License-Identifier: Apache-2.0
"""Models of several stages: graphs, walks, partitions, and the buffers of their streams. No torch and no sockets."""
