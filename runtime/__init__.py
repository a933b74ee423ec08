# SPDX-License-Identifier: Apache-2.0
"""Everything between the HTTP surface and the tensor operations."""
