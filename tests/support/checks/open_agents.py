# SPDX-License-Identifier: Apache-2.0
"""Coding agents that are run unchanged: what is installed, and how each is told of a server.

None gets a tool that runs commands of a model's without a sandbox, and each has a home of its own."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from client_environment import NPM_AGENT, NotInstalled, cache, install, made_whole, need_node

KEY_VARIABLE = "PONTIL_KEY"
# Megabytes of native binaries.
INSTALL_TIMEOUT = 900.0


@dataclass(frozen=True)
class ServerForAgent:
    """A server as an agent is told of it, and the agent's own folder for its files."""

    url: str
    model: str
    key: str
    home: Path


@dataclass(frozen=True)
class StartedAgent:
    """The words behind the installed folder's program, and the variables of an agent's process."""

    program: str
    arguments: tuple[str, ...]
    variables: dict[str, str]


@dataclass(frozen=True)
class OpenAgent:
    """A coding agent of npm, with the path that it asks and how it is started with a task."""

    name: str
    package: str
    version: str
    path: str
    start: Callable[[ServerForAgent, str], StartedAgent]

    @property
    def key(self) -> str:
        return self.name.lower().replace(" ", "-")

    def installed(self) -> Path:
        """Return the folder of its packages; none of their scripts is run. Raises NotInstalled."""
        need_node()
        place = cache() / f"agent-{self.key}-{self.version}"
        if not place.exists():
            with made_whole(place) as folder:
                (folder / "package.json").write_text("{}")
                install((*NPM_AGENT, f"{self.package}@{self.version}"), folder, INSTALL_TIMEOUT)
        return place / "node_modules"

    def command(self, server: ServerForAgent, task: str) -> tuple[list[str], dict[str, str]]:
        """Return the command line and the variables of its process."""
        started = self.start(server, task)
        program = self.installed() / started.program
        if not program.exists():
            raise NotInstalled(f"{self.package} has no {started.program} for this machine")
        runs = ["node", str(program)] if program.suffix in (".js", ".mjs") else [str(program)]
        homes = {"HOME": str(server.home), "XDG_CONFIG_HOME": str(server.home / "config")}
        more = {"XDG_DATA_HOME": str(server.home / "data"), "XDG_CACHE_HOME": str(server.home / "cache")}
        return [*runs, *started.arguments], homes | more | started.variables


def pi(server: ServerForAgent, task: str) -> StartedAgent:
    """Describe the model in pi's own file, and have it draw greedily by an extension, which its documentation shows."""
    model = {"id": server.model, "contextWindow": 32768, "maxTokens": 400}
    provider = {"baseUrl": f"{server.url}/v1", "api": "openai-completions", "apiKey": server.key, "models": [model]}
    (server.home / "models.json").write_text(json.dumps({"providers": {"pontil": provider}}))
    extension = server.home / "greedy.js"
    hook = '"before_provider_request", (event) => ({ ...event.payload, temperature: 0 })'
    extension.write_text(f"export default function (pi) {{ pi.on({hook}); }}\n")
    flags = (
        "--no-session",
        "--provider",
        "pontil",
        "--model",
        server.model,
        "--tools",
        "read,edit",
        "-e",
        str(extension),
    )
    quiet = {"PI_CODING_AGENT_DIR": str(server.home), "PI_OFFLINE": "1", "PI_TELEMETRY": "0"}
    return StartedAgent("@mariozechner/pi-coding-agent/dist/cli.js", ("-p", *flags, task), quiet)


CODEX = """\
model = "{model}"
model_provider = "pontil"
check_for_update_on_startup = false

[model_providers.pontil]
name = "pontil"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "{key}"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 1800000
"""


def codex(server: ServerForAgent, task: str) -> StartedAgent:
    config = CODEX.format(model=server.model, url=server.url, key=KEY_VARIABLE)
    (server.home / "config.toml").write_text(config)
    flags = ("--skip-git-repo-check", "--sandbox", "read-only")
    variables = {"CODEX_HOME": str(server.home), KEY_VARIABLE: server.key}
    return StartedAgent("@openai/codex/bin/codex.js", ("exec", *flags, task), variables)


def claude_code(server: ServerForAgent, task: str) -> StartedAgent:
    variables = {
        "CLAUDE_CONFIG_DIR": str(server.home),
        "ANTHROPIC_BASE_URL": server.url,
        "ANTHROPIC_AUTH_TOKEN": server.key,
        "ANTHROPIC_MODEL": server.model,
        "ANTHROPIC_SMALL_FAST_MODEL": server.model,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "200",
        "API_TIMEOUT_MS": "1800000",
        "DISABLE_AUTOUPDATER": "1",
    }
    program = "@anthropic-ai/claude-code-linux-x64/claude"
    return StartedAgent(program, ("-p", "--disallowedTools", "Bash", "--", task), variables)


def opencode(server: ServerForAgent, task: str) -> StartedAgent:
    model = {"name": server.model, "limit": {"context": 32768, "output": 200}}
    options = {"baseURL": f"{server.url}/v1", "apiKey": server.key}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "pontil",
        "options": options,
        "models": {server.model: model},
    }
    config = {
        "provider": {"pontil": provider},
        "model": f"pontil/{server.model}",
        "small_model": f"pontil/{server.model}",
        "autoupdate": False,
        "share": "disabled",
        "permission": {"bash": "deny"},
    }
    file = server.home / "opencode.json"
    file.write_text(json.dumps(config))
    variables = {"OPENCODE_CONFIG": str(file), "OPENCODE_DISABLE_MODELS_FETCH": "1"}
    return StartedAgent("opencode-linux-x64/bin/opencode", ("run", task), variables)


PI = OpenAgent("pi", "@mariozechner/pi-coding-agent", "0.73.1", "/v1/chat/completions", pi)
OPEN_AGENTS = (
    PI,
    OpenAgent("Codex CLI", "@openai/codex", "0.171.0", "/v1/responses", codex),
    OpenAgent("Claude Code", "@anthropic-ai/claude-code", "2.1.332", "/v1/messages", claude_code),
    OpenAgent("opencode", "opencode-ai", "1.18.33", "/v1/chat/completions", opencode),
)
