# SPDX-License-Identifier: Apache-2.0
"""The rooms of the launcher, and which rooms each may import: a part of arrows.py."""

LAUNCHER_ARROWS: dict[str, set[str]] = {
    "launcher/foundation": set(),
    "launcher/host": set(),
    "launcher/options": {"launcher/host", "runtime"},
    "launcher/plan": {"launcher/host", "launcher/options", "runtime", "runtime/planner/device_profile"},
    "launcher/control": {"launcher/options", "launcher/plan"},
    "launcher/logs": {"launcher/control"},
    "launcher/child": {"launcher/host", "launcher/logs", "launcher/plan"},
    "launcher/child/fork": {"launcher/child"},
    # The only module of the launcher that imports the product; runs in the child, or on request.
    "launcher/roles": {
        "http/server", "launcher/child", "launcher/child/fork", "launcher/logs", "launcher/options", "runtime",
        "runtime/accounting", "runtime/loaders/builtin", "runtime/probe", "runtime/worker", "runtime/worker/start",
    },
    # The child that looks at the machine and at models.
    "launcher/doctor/child": {"launcher/child", "runtime/inspection", "runtime/probe"},
    "launcher": {"launcher/doctor/child", "launcher/roles"},
    "launcher/keys": {"launcher/child", "launcher/options", "launcher/plan", "runtime"},
    "launcher/supervisor/rollouts": {
        "launcher/child", "launcher/host", "launcher/logs", "launcher/options", "launcher/plan",
    },
    "launcher/supervisor": {
        "launcher/child", "launcher/control", "launcher/host", "launcher/keys", "launcher/logs", "launcher/options",
        "launcher/plan", "launcher/supervisor/rollouts",
    },
    # One launch for each worker, on the nodes of a cluster. Ray is imported when it is asked for.
    "launcher/cluster": {
        "launcher/child", "launcher/host", "launcher/keys", "launcher/logs", "launcher/options", "launcher/plan",
        "launcher/supervisor",
    },
    "launcher/commands/terminal": {"launcher/options"},
    # On request: checks receipts, and computes them again in its own process; or has requests with them sent again.
    "launcher/receipts": {
        "launcher/child", "launcher/commands/terminal", "launcher/keys", "launcher/options", "runtime",
        "runtime/loaders/builtin", "runtime/receipts", "runtime/recompute", "runtime/worker",
    },
    "launcher/commands": {
        "launcher/child", "launcher/child/fork", "launcher/commands/terminal", "launcher/control", "launcher/host",
        "launcher/keys", "launcher/logs", "launcher/options", "launcher/plan", "launcher/receipts", "launcher/roles",
        "launcher/supervisor",
    },
    "launcher/models": {
        "launcher/commands", "launcher/options", "runtime", "runtime/loaders/builtin", "runtime/worker/start",
    },
    "launcher/doctor": {
        "launcher/child", "launcher/commands", "launcher/control", "launcher/host", "launcher/keys", "launcher/options",
        "launcher/plan",
    },
    "launcher/tools": set(),
    "launcher/tools/bench": {"launcher/keys", "launcher/options"},
    "launcher/tools/chaos": {
        "launcher/keys", "launcher/commands/launch_choice", "launcher/commands/usage", "launcher/control",
        "launcher/options", "launcher/tools/bench",
    },
    "launcher/tools/conformance": {"launcher/keys", "launcher/commands/terminal/status_table", "launcher/options"},
    "launcher/tools/planner": {
        "launcher/child", "launcher/commands", "launcher/control", "launcher/host", "launcher/keys", "launcher/options",
        "launcher/plan", "launcher/receipts/rank_processes", "launcher/tools/bench", "runtime", "runtime/planner",
        "runtime/planner/device_profile", "runtime/planner/step_costs", "runtime/proxy/requests",
        "runtime/wire/simulated",
    },
    "launcher/tools/disturbances": {
        "launcher/child", "launcher/control", "launcher/logs", "launcher/options", "launcher/supervisor",
    },
}  # fmt: skip
