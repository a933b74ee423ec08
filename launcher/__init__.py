# SPDX-License-Identifier: Apache-2.0
"""The command line, and the supervisor that forks, watches and restarts the processes."""
