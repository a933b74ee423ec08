# SPDX-License-Identifier: Apache-2.0
"""The fingerprint changes with everything that a seed's tokens depend on, and with nothing else."""

from dataclasses import replace
from typing import Any

import pytest
from recorded_frames import MESSAGES

from pontil.runtime.proxy.fleet.registry_snapshot import FingerprintCache, system_fingerprint
from pontil.runtime.wire.messages import Hello

HELLO = MESSAGES["hello"]


@pytest.mark.parametrize(
    "changed",
    [{"model_fingerprint": "x"}, {"dtype": "x"}, {"kv_cache_dtype": "fp8"}, {"kernels": "x"}, {"kernels": None}],
)
def test_it_changes(changed: dict[str, Any]) -> None:
    assert isinstance(HELLO, Hello)
    assert system_fingerprint(replace(HELLO, **changed), "1") != system_fingerprint(HELLO, "1")


def test_it_changes_with_the_version_only() -> None:
    assert isinstance(HELLO, Hello)
    other = replace(
        HELLO, sender="x", name="y", pid=1, device="cuda:1", num_blocks=7, max_num_seqs=1, peer_endpoint="z"
    )
    assert system_fingerprint(other, "1") == system_fingerprint(HELLO, "1")
    silent = replace(HELLO, version=None)
    assert system_fingerprint(silent, "1") != system_fingerprint(silent, "2"), "the proxy's, if a worker says none"
    assert system_fingerprint(silent, str(HELLO.version)) == system_fingerprint(HELLO, "2")


def test_a_remembered_fingerprint_is_that_of_the_worker_and_version_asked_for() -> None:
    assert isinstance(HELLO, Hello)
    cache, other = FingerprintCache(), replace(HELLO, dtype="x")
    for hello, version in ((HELLO, "1"), (HELLO, "1"), (other, "1"), (HELLO, "2"), (replace(HELLO), "1"), (other, "2")):
        assert cache.of(hello, version) == system_fingerprint(hello, version)
