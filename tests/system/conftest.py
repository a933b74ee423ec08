# SPDX-License-Identifier: Apache-2.0
"""What tests of whole systems share."""

import pytest

from pontil.runtime.loaders.synthetic import write_tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    folder.mkdir()
    write_tiny_llama(folder)
    return str(folder)
