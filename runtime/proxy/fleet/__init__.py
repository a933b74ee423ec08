# SPDX-License-Identifier: Apache-2.0
"""The workers, as this proxy knows them."""
