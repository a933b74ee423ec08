# SPDX-License-Identifier: Apache-2.0
"""The life of a worker process, whatever it computes."""
