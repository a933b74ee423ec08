# SPDX-License-Identifier: Apache-2.0
"""Moving KV blocks from the worker that computed them to the one that decodes with them."""
