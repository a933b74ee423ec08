# SPDX-License-Identifier: Apache-2.0
"""The body of a prefill, decode or mixed process: sockets around the engine step."""
