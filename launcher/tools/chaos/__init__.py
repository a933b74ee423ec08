# SPDX-License-Identifier: Apache-2.0
"""The command `chaos`: faults in a running launch under a load, and a verdict."""
