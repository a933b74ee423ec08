# SPDX-License-Identifier: Apache-2.0
"""Many processes in one, in virtual time: their clock, turns, event loops, threads and sockets."""
