# SPDX-License-Identifier: Apache-2.0
"""Imports while the garbage collector rests, in a process of their own: it is a setting of the whole process."""

import subprocess
import sys

from command_line import ROOT

SCRIPT = """
import app, gc
from pontil.launcher.child.fork.forked import quick_import

kept = gc.get_freeze_count()
try:
    with quick_import():
        assert not gc.isenabled()
        made = [[] for _ in range(1000)]
        raise ImportError
except ImportError:
    assert gc.isenabled() and gc.get_freeze_count() >= kept + 1000
    assert not any(one is made for one in gc.get_objects())
gc.disable()
with quick_import():
    pass
assert not gc.isenabled()
"""


def test_the_collector_rests_and_never_looks_at_what_was_imported() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
