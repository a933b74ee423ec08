# SPDX-License-Identifier: Apache-2.0
"""All scenarios, in the order of the table in docs/internals/world.md."""

import key_rows
import link_rows
import linux_rows
import loop_rows
import message_rows
import silent_rows
from scenario import Scenario

SCENARIOS: tuple[Scenario, ...] = (
    *link_rows.SCENARIOS,
    *message_rows.SCENARIOS,
    *linux_rows.SCENARIOS,
    *loop_rows.SCENARIOS,
    *silent_rows.SCENARIOS,
    *key_rows.SCENARIOS,
)
