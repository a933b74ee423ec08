# SPDX-License-Identifier: Apache-2.0
"""The garbage collector of a process that serves many requests at once."""

import gc

# Objects that are made before the collector looks at them: those of a few hundred requests, or of some steps of as
# many rows. With Python's own number it looks at those of requests in flight again and again.
YOUNG_OBJECTS = 20_000


def leave_to_requests() -> None:
    """Have the collector look at what requests leave, seldom, and never again at what exists by now."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG_OBJECTS)
