# SPDX-License-Identifier: Apache-2.0
"""Speech and transcriptions."""
