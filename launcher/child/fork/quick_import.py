# SPDX-License-Identifier: Apache-2.0
"""Imports of large libraries in less time, for processes whose users wait until they have started."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def quick_import() -> Iterator[None]:
    """Import what stays until the process ends. The garbage collector rests meanwhile, which is a seventh of the time
    that torch takes, and never looks at it later."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if was_enabled:
            gc.enable()
