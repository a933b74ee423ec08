# SPDX-License-Identifier: Apache-2.0
"""Files and batches: requests that are sent as lines of a file, and answered when nobody else wants a seat."""
