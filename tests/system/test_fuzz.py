# SPDX-License-Identifier: Apache-2.0
"""Input that fits the schema, or nearly does, gets a response as the schema says: no 500, no hang, no leftovers
(F3).

By default tests/world sends bodies drawn from the same description to a launch under faults
(`hostile_requests_have_a_defined_answer`)."""

from collections.abc import Iterator

import pytest
from oracle import at_rest
from served import Served, launched
from tiny_llama import write_tiny_llama

# A template that knows tools, and markers of all that is parsed in outputs.
TEMPLATE = "{% for message in messages %}{{ message.content }}{% endfor %}{{ tools and 'tools' }}"
READ = ("--tool-call-parser", "hermes", "--reasoning-parser", "think")
REQUESTS = 2000
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    write_tiny_llama(folder, max_model_len=128)
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    options = ("--model", str(folder), "--role", "mixed", "--kv-cache-memory", "16MiB", *READ)
    with launched(tmp_path_factory.mktemp("fuzz"), *options) as running:
        yield running


def test_the_schema_is_kept(served: Served) -> None:  # F3
    # Every process of a run collects this file, and one runs it: the others do without a second of imports.
    from schema_fuzz import fuzz_all

    before = at_rest(served)
    statuses = fuzz_all(f"http://127.0.0.1:{served.port}", REQUESTS)
    assert statuses.total() >= REQUESTS
    # Most operations take what the tiny model has not, or a name that nothing has.
    assert min(statuses[200], statuses[400]) > REQUESTS // 50, "neither kind of answer is rare"
    assert "by a fault of ours" not in served.output.read_text()
    assert at_rest(served).free_blocks == before.free_blocks
