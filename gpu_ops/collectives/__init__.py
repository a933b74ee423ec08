# SPDX-License-Identifier: Apache-2.0
"""Exchange of tensors between the ranks of one worker."""
