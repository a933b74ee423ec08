# SPDX-License-Identifier: Apache-2.0
"""The rooms of the product, and which may import which."""

from launcher_arrows import LAUNCHER_ARROWS

# Modules and rooms of a top-level folder that every room of it may import.
SHARED = {
    "launcher": {"foundation"},
    "runtime": {"command_pipe", "config", "errors", "reporting", "sampling_params", "threads"},
}
# Map from a room to the rooms or modules that it may import besides itself and its folder's shared modules. The rooms
# form no circle: of two rooms, at most one may import the other.
ARROWS: dict[str, set[str]] = {
    # Values that every implementation of an operation takes.
    "gpu_ops/parameters": set(),
    "gpu_ops/triton": {"gpu_ops/parameters"},
    "gpu_ops/triton/per_sequence": {"gpu_ops/parameters", "gpu_ops/triton"},
    "gpu_ops": {"gpu_ops/parameters", "gpu_ops/triton"},
    "gpu_ops/kernels/compile": set(),
    "gpu_ops/kv": {"gpu_ops", "gpu_ops/parameters", "gpu_ops/triton", "gpu_ops/triton/per_sequence"},
    "gpu_ops/attention_backends": {"gpu_ops", "gpu_ops/kv", "gpu_ops/parameters"},
    "gpu_ops/kernels/weights": {"gpu_ops/kv", "gpu_ops/parameters"},
    "gpu_ops/products": {
        "gpu_ops", "gpu_ops/kernels/weights", "gpu_ops/parameters", "gpu_ops/triton", "gpu_ops/triton/per_sequence",
    },
    "gpu_ops/kernels": {
        "gpu_ops", "gpu_ops/kernels/compile", "gpu_ops/kernels/weights", "gpu_ops/kv", "gpu_ops/parameters",
        "gpu_ops/products",
    },
    "gpu_ops/collectives": {"gpu_ops", "gpu_ops/kernels"},
    "gpu_ops/draws": {"gpu_ops/parameters", "gpu_ops/triton"},
    "runtime": set(),
    "runtime/accounting": set(),
    "runtime/cache": {"gpu_ops", "gpu_ops/kernels/weights", "gpu_ops/kv"},
    "runtime/cache/tier": {"gpu_ops/kv", "runtime/cache"},
    "runtime/cache/leases": {"runtime/cache", "runtime/cache/tier/tier_pins"},
    "runtime/config": set(),
    # A worker's own times, which each of its rooms may note.
    "runtime/timeline/work_times": set(),
    "runtime/transfer": {"runtime/cache/head_groups", "runtime/cache/storage"},
    "runtime/wire": set(),
    "runtime/disaggregation": {
        "runtime/cache/follower_records", "runtime/cache/head_groups", "runtime/cache/storage",
        "runtime/timeline/work_times", "runtime/transfer", "runtime/wire",
    },
    "runtime/models": {
        "gpu_ops", "gpu_ops/collectives", "gpu_ops/kernels", "gpu_ops/kernels/weights", "gpu_ops/kv",
        "gpu_ops/parameters", "gpu_ops/products",
    },
    "runtime/models/layers": {
        "gpu_ops", "gpu_ops/collectives", "gpu_ops/kernels", "gpu_ops/kernels/weights", "gpu_ops/kv",
        "gpu_ops/parameters", "gpu_ops/products", "runtime/models",
    },
    "runtime/engine/sequences": {
        "gpu_ops/parameters", "gpu_ops/products", "runtime/cache", "runtime/timeline/work_times",
    },
    "runtime/engine/prefixes": {"runtime/cache", "runtime/engine/sequences"},
    "runtime/engine/sampling": {"gpu_ops/draws", "gpu_ops/kernels", "gpu_ops/parameters", "runtime/engine/sequences"},
    "runtime/engine/tiles": {
        "gpu_ops/kernels", "gpu_ops/kv", "gpu_ops/parameters", "gpu_ops/products", "runtime/cache",
        "runtime/engine/sequences", "runtime/models",
    },
    "runtime/engine/runner": {
        "gpu_ops/parameters", "gpu_ops/products", "runtime/cache", "runtime/engine/sampling",
        "runtime/engine/sequences", "runtime/engine/tiles", "runtime/models",
    },
    "runtime/engine/device": {
        "gpu_ops", "gpu_ops/attention_backends", "gpu_ops/draws", "gpu_ops/kernels", "gpu_ops/kv", "gpu_ops/parameters",
        "gpu_ops/products", "runtime/cache", "runtime/engine/runner", "runtime/engine/sampling",
        "runtime/engine/sequences", "runtime/engine/tiles", "runtime/models",
    },
    "runtime/engine/drafts": {
        "gpu_ops/attention_backends", "gpu_ops/products", "runtime/cache", "runtime/engine/device",
        "runtime/engine/prefixes", "runtime/engine/runner", "runtime/engine/sequences", "runtime/engine/tiles",
        "runtime/models", "runtime/models/layers",
    },
    "runtime/engine": {
        "gpu_ops/kv", "gpu_ops/products", "runtime/cache", "runtime/cache/tier", "runtime/engine/drafts",
        "runtime/engine/prefixes", "runtime/engine/runner", "runtime/engine/sampling", "runtime/engine/sequences",
    },
    # Standard library only, so that the launcher may import it too; gpu_ops alone may not.
    "runtime/foundation": set(),
    "runtime/loaders/facts": {"runtime/models/architectures", "runtime/models/config"},
    "runtime/loaders/gguf": {"runtime/loaders/facts", "runtime/models/architectures", "runtime/models/config"},
    "runtime/loaders/fetching": set(),
    "runtime/loaders/hub": {"runtime/loaders/facts", "runtime/loaders/fetching", "runtime/loaders/gguf"},
    "runtime/tokenizer": {"runtime/loaders/gguf/header"},
    "runtime/grammar": {"runtime/tokenizer"},
    "runtime/grammar/processes": {"runtime/grammar"},
    "runtime/chat/calls": {"runtime/grammar"},
    "runtime/chat": {"runtime/chat/calls", "runtime/grammar", "runtime/tokenizer"},
    "runtime/loaders/hf": {
        "gpu_ops/parameters", "runtime/loaders/facts", "runtime/models/architectures", "runtime/models/config",
        "runtime/models/encoder_config",
    },
    "runtime/loaders": {
        "runtime/loaders/facts", "runtime/loaders/fetching", "runtime/loaders/gguf", "runtime/loaders/hf",
        "runtime/loaders/hub", "runtime/models/architectures", "runtime/models/config",
    },
    "runtime/models/families": {"gpu_ops/kv", "runtime/models", "runtime/models/layers"},
    "runtime/probe": {
        "gpu_ops/kernels", "gpu_ops/kernels/compile", "gpu_ops/kernels/weights/shared_scales", "runtime/cache",
        "runtime/loaders", "runtime/loaders/facts", "runtime/loaders/gguf", "runtime/models/config",
        "runtime/models/partition", "runtime/transfer",
    },
    "runtime/stages/graph": {"runtime/cache/prefix"},
    "runtime/timeline": {"runtime/wire/messages"},
    # Libraries of the extra `otel`, imported where a collector is named.
    "runtime/tracing": {"runtime/timeline"},
    "runtime/wire/links": {"runtime/wire"},
    # A process whose clock, sockets and threads are replaced, before it imports anything else.
    "runtime/wire/simulated": set(),
    "runtime/proxy/routing": {
        "runtime/accounting", "runtime/cache/adaptation", "runtime/cache/prefix", "runtime/cache/prefix_journal",
        "runtime/wire",
    },
    "runtime/proxy/fleet": {"runtime/proxy/routing", "runtime/wire"},
    # The chain and the statement, of the standard library; signatures need the library of the proxy's links.
    "runtime/receipts": set(),
    "runtime/proxy/requests": {
        "runtime/accounting", "runtime/cache/adaptation", "runtime/proxy/fleet", "runtime/proxy/routing",
        "runtime/receipts", "runtime/timeline", "runtime/tokenizer", "runtime/wire",
    },
    # The times of a device, which a proxy reads too: no torch.
    "runtime/planner/device_profile": set(),
    "runtime/planner/step_costs": {"runtime/engine/sequences", "runtime/planner/device_profile"},
    "runtime/proxy/balance": {
        "runtime/planner/device_profile", "runtime/planner/step_costs", "runtime/proxy/fleet", "runtime/proxy/requests",
        "runtime/proxy/routing",
    },
    "runtime/proxy/metrics": {"runtime/accounting", "runtime/proxy/fleet", "runtime/proxy/requests", "runtime/wire"},
    "runtime/proxy/leases": {
        "runtime/accounting", "runtime/cache/adaptation", "runtime/cache/leases", "runtime/cache/prefix",
        "runtime/proxy/fleet", "runtime/proxy/requests", "runtime/proxy/routing", "runtime/wire",
    },
    "runtime/proxy/dispatch": {
        "runtime/accounting", "runtime/proxy/balance", "runtime/proxy/fleet", "runtime/proxy/metrics",
        "runtime/proxy/requests", "runtime/proxy/routing", "runtime/wire", "runtime/wire/links",
    },
    "runtime/proxy/siblings": {"runtime/proxy/metrics", "runtime/proxy/requests"},
    "runtime/proxy/admission": {
        "runtime/accounting", "runtime/proxy/dispatch", "runtime/proxy/fleet", "runtime/proxy/metrics",
        "runtime/proxy/requests", "runtime/proxy/routing", "runtime/proxy/siblings", "runtime/timeline",
        "runtime/tokenizer", "runtime/tracing",
    },
    "runtime/proxy/resume": {
        "runtime/accounting", "runtime/proxy/admission", "runtime/proxy/fleet", "runtime/proxy/requests",
        "runtime/proxy/siblings", "runtime/tokenizer",
    },
    "runtime/proxy": {
        "runtime/accounting", "runtime/proxy/admission", "runtime/proxy/balance", "runtime/proxy/dispatch",
        "runtime/proxy/fleet", "runtime/proxy/leases", "runtime/proxy/metrics", "runtime/proxy/requests",
        "runtime/proxy/resume", "runtime/proxy/routing", "runtime/proxy/siblings", "runtime/timeline",
        "runtime/tokenizer", "runtime/wire", "runtime/wire/links",
    },
    "runtime/stages/runs": {
        "runtime/accounting", "runtime/proxy", "runtime/proxy/admission", "runtime/proxy/dispatch",
        "runtime/proxy/fleet", "runtime/proxy/metrics", "runtime/proxy/requests", "runtime/proxy/routing",
        "runtime/stages/graph", "runtime/wire",
    },
    "runtime/stages": set(),
    # Libraries of the extra `speech`, imported when a node is made, or in the process that decodes media.
    "runtime/stages/nodes": set(),
    "runtime/stages/streams": {
        "runtime/cache/layout", "runtime/cache/storage", "runtime/stages/graph", "runtime/tokenizer",
        "runtime/transfer", "runtime/wire",
    },
    "runtime/stages/qwen3_omni": {
        "gpu_ops", "gpu_ops/draws", "gpu_ops/kernels", "gpu_ops/kv", "gpu_ops/products", "runtime/engine/sampling",
        "runtime/engine/sequences", "runtime/loaders", "runtime/loaders/facts", "runtime/loaders/hf", "runtime/models",
        "runtime/models/families", "runtime/models/layers", "runtime/stages/graph", "runtime/stages/streams",
    },
    "runtime/stages/qwen3_omni/encoders": {
        "gpu_ops", "gpu_ops/kernels", "runtime/engine/sequences", "runtime/loaders/facts", "runtime/loaders/hf",
        "runtime/models", "runtime/models/layers", "runtime/stages/graph", "runtime/stages/nodes",
        "runtime/stages/qwen3_omni",
    },
    # Pillow, of the extra `images`, is imported in a process of its own.
    "runtime/stages/media": {
        "runtime/grammar/processes", "runtime/stages/graph", "runtime/stages/nodes",
        "runtime/stages/qwen3_omni/encoders",
    },
    "runtime/stages/orpheus": {
        "runtime/loaders/facts", "runtime/loaders/hf", "runtime/models", "runtime/stages/nodes", "runtime/tokenizer",
    },
    "runtime/worker/ranks": {
        "gpu_ops/collectives", "gpu_ops/kernels", "runtime/cache/follower_records", "runtime/disaggregation",
        "runtime/engine/tiles", "runtime/models", "runtime/models/layers", "runtime/wire", "runtime/wire/links",
    },
    "runtime/worker/adapters": {
        "gpu_ops/collectives", "gpu_ops/parameters", "runtime/disaggregation", "runtime/engine/runner",
        "runtime/engine/sequences", "runtime/loaders/hf", "runtime/models", "runtime/wire",
    },
    "runtime/worker/start": {
        "gpu_ops/attention_backends", "gpu_ops/collectives", "gpu_ops/draws", "gpu_ops/kernels",
        "gpu_ops/kernels/compile", "gpu_ops/kernels/weights", "gpu_ops/parameters", "gpu_ops/products",
        "runtime/cache", "runtime/cache/tier",
        "runtime/engine", "runtime/engine/device", "runtime/engine/drafts", "runtime/engine/runner",
        "runtime/engine/sequences", "runtime/grammar", "runtime/loaders", "runtime/loaders/facts",
        "runtime/loaders/gguf", "runtime/loaders/hf", "runtime/loaders/hub", "runtime/models",
        "runtime/models/families", "runtime/models/layers", "runtime/probe", "runtime/tokenizer", "runtime/wire",
        "runtime/worker/adapters",
        "runtime/worker/ranks",
    },
    # Models before a launch, each part of them as workers would read it.
    "runtime/inspection": {
        "gpu_ops/kernels", "gpu_ops/kernels/compile", "runtime/cache", "runtime/chat", "runtime/engine",
        "runtime/engine/runner", "runtime/engine/sequences", "runtime/loaders", "runtime/loaders/facts",
        "runtime/loaders/gguf", "runtime/loaders/hf", "runtime/models", "runtime/models/families",
        "runtime/models/layers", "runtime/probe", "runtime/tokenizer", "runtime/worker/start",
    },
    "runtime/worker/links": {
        "runtime/cache", "runtime/timeline/work_times", "runtime/transfer", "runtime/wire", "runtime/wire/links",
    },
    "runtime/worker/process": {
        "gpu_ops/kernels", "runtime/cache", "runtime/chat", "runtime/engine", "runtime/engine/sequences",
        "runtime/grammar", "runtime/timeline/work_times", "runtime/tokenizer", "runtime/wire", "runtime/wire/links",
        "runtime/worker/links", "runtime/worker/start",
    },
    "runtime/transfer/shm": {"runtime/cache/storage", "runtime/transfer"},
    "runtime/transfer/cuda": {
        "runtime/cache/device_memory", "runtime/cache/storage", "runtime/transfer", "runtime/transfer/shm",
    },
    "runtime/transfer/nixl": {"runtime/cache/storage", "runtime/transfer"},
    "runtime/transfer/tcp": {"runtime/cache/storage", "runtime/transfer"},
    "runtime/worker/embed": {
        "gpu_ops/kernels", "runtime/engine/runner", "runtime/loaders", "runtime/loaders/hf", "runtime/models",
        "runtime/models/families", "runtime/models/layers", "runtime/timeline/work_times", "runtime/tokenizer",
        "runtime/wire", "runtime/worker/links", "runtime/worker/process", "runtime/worker/start",
    },
    "runtime/worker/generate": {
        "gpu_ops/parameters", "runtime/cache", "runtime/cache/leases", "runtime/disaggregation", "runtime/engine",
        "runtime/engine/prefixes", "runtime/engine/runner", "runtime/engine/sequences", "runtime/grammar",
        "runtime/models", "runtime/receipts", "runtime/transfer", "runtime/wire", "runtime/wire/links",
        "runtime/worker/adapters", "runtime/worker/links", "runtime/worker/process", "runtime/worker/start",
    },
    "runtime/worker": {
        "gpu_ops", "gpu_ops/collectives", "gpu_ops/kernels", "runtime/cache", "runtime/disaggregation",
        "runtime/engine/tiles", "runtime/models", "runtime/transfer", "runtime/wire", "runtime/wire/links",
        "runtime/worker/adapters", "runtime/worker/embed", "runtime/worker/generate", "runtime/worker/links",
        "runtime/worker/process", "runtime/worker/ranks", "runtime/worker/start",
    },
    "runtime/recompute": {
        "gpu_ops/kernels", "gpu_ops/kernels/compile", "runtime/cache/adaptation", "runtime/engine",
        "runtime/engine/sequences", "runtime/loaders/facts", "runtime/receipts", "runtime/tokenizer", "runtime/wire",
        "runtime/worker/generate", "runtime/worker/process", "runtime/worker/start",
    },
    # A launch in virtual time, and the measurement of what it needs.
    "runtime/planner": {
        "runtime/cache", "runtime/cache/tier", "runtime/engine/drafts", "runtime/engine/runner",
        "runtime/engine/sampling", "runtime/engine/sequences", "runtime/grammar", "runtime/loaders/builtin",
        "runtime/models", "runtime/planner/device_profile", "runtime/planner/step_costs", "runtime/probe",
        "runtime/proxy", "runtime/proxy/requests", "runtime/tokenizer", "runtime/transfer", "runtime/transfer/shm",
        "runtime/wire/simulated", "runtime/worker/generate", "runtime/worker/links", "runtime/worker/ranks",
        "runtime/worker/start",
    },
    "runtime/stages/worker": {
        "gpu_ops/kernels",
        "runtime/engine",
        "runtime/engine/sequences",
        "runtime/loaders",
        "runtime/models",
        "runtime/stages/graph",
        "runtime/stages/media",
        "runtime/stages/nodes",
        "runtime/stages/orpheus",
        "runtime/stages/qwen3_omni",
        "runtime/stages/qwen3_omni/encoders",
        "runtime/stages/streams",
        "runtime/timeline/work_times",
        "runtime/transfer",
        "runtime/wire",
        "runtime/wire/links",
        "runtime/worker/generate",
        "runtime/worker/links",
        "runtime/worker/process",
        "runtime/worker/start",
    },
    "http/schema": {"runtime"},
    "http/access": {"http/schema", "runtime", "runtime/proxy/requests"},
    "http/fields": {"http/schema", "runtime", "runtime/grammar", "runtime/proxy/requests"},
    "http/intake": {
        "http/access", "http/fields", "http/schema", "runtime", "runtime/grammar", "runtime/grammar/processes",
        "runtime/proxy", "runtime/proxy/admission", "runtime/proxy/fleet", "runtime/proxy/requests", "runtime/timeline",
    },
    "http/openai": set(),
    "http/stream": {
        "http/access", "http/fields", "http/schema", "runtime", "runtime/accounting", "runtime/chat",
        "runtime/grammar/processes", "runtime/proxy", "runtime/proxy/fleet", "runtime/proxy/requests",
        "runtime/proxy/resume", "runtime/proxy/siblings", "runtime/receipts", "runtime/timeline", "runtime/tokenizer",
        "runtime/wire/compatibility", "runtime/wire/messages",
    },
    "http/openai/chat": {
        "http/fields", "http/intake", "http/schema", "http/stream", "runtime", "runtime/accounting", "runtime/chat",
        "runtime/chat/calls", "runtime/grammar", "runtime/proxy/requests", "runtime/timeline",
        "runtime/tokenizer",
    },
    "http/openai/sound": {
        "http/access", "http/fields", "http/intake", "http/openai/chat", "http/schema", "http/stream", "runtime",
        "runtime/accounting", "runtime/grammar/processes", "runtime/proxy", "runtime/proxy/requests",
        "runtime/stages/graph", "runtime/stages/media", "runtime/stages/runs",
    },
    "http/openai/completions": {
        "http/access", "http/fields", "http/intake", "http/openai/chat", "http/schema", "http/stream", "runtime",
        "runtime/chat", "runtime/proxy", "runtime/proxy/admission", "runtime/proxy/fleet", "runtime/proxy/requests",
    },
    "http/openai/embeddings": {
        "http/fields", "http/intake", "http/openai/chat", "http/openai/completions", "http/schema", "http/stream",
        "runtime", "runtime/proxy", "runtime/proxy/admission", "runtime/proxy/fleet", "runtime/proxy/requests",
        "runtime/tokenizer",
    },
    "http/store": {"http/schema", "runtime", "runtime/accounting", "runtime/proxy/siblings"},
    "http/openai/responses": {
        "http/fields", "http/intake", "http/openai/chat", "http/openai/completions", "http/schema", "http/store",
        "http/stream", "runtime", "runtime/accounting", "runtime/chat", "runtime/grammar/processes",
        "runtime/proxy/requests", "runtime/tokenizer", "runtime/wire/messages",
    },
    "http/anthropic": {
        "http/fields", "http/openai/chat", "http/openai/completions", "http/schema", "http/stream", "runtime",
        "runtime/accounting", "runtime/chat", "runtime/grammar/processes", "runtime/proxy/requests",
    },
    "http/ollama": {
        "http/access", "http/fields", "http/intake", "http/openai/chat", "http/openai/completions",
        "http/openai/embeddings", "http/schema", "http/stream", "runtime", "runtime/accounting", "runtime/chat",
        "runtime/grammar", "runtime/grammar/processes", "runtime/proxy", "runtime/proxy/requests", "runtime/timeline",
    },
    "http/prefixes": {
        "http/access", "http/fields", "http/intake", "http/openai/chat", "http/openai/completions", "http/schema",
        "http/stream", "runtime", "runtime/accounting", "runtime/proxy", "runtime/proxy/leases",
        "runtime/proxy/requests",
    },
    "http/batch": {
        "http/access", "http/anthropic", "http/intake", "http/schema", "http/store", "http/stream", "runtime",
        "runtime/accounting", "runtime/proxy", "runtime/proxy/requests", "runtime/proxy/siblings",
    },
    "http/page": {
        "http/access", "http/intake", "http/schema", "http/stream", "runtime", "runtime/proxy", "runtime/proxy/fleet",
    },
    "http/vllm": {
        "http/access", "http/fields", "http/intake", "http/openai/chat", "http/openai/completions",
        "http/openai/embeddings", "http/schema", "http/stream", "runtime", "runtime/accounting",
        "runtime/grammar/processes", "runtime/probe/adapters", "runtime/proxy", "runtime/proxy/admission",
        "runtime/proxy/fleet", "runtime/proxy/requests", "runtime/tokenizer",
    },
    "http/routes": {
        "http/access", "http/anthropic", "http/batch", "http/intake", "http/ollama", "http/openai/chat",
        "http/openai/completions",
        "http/openai/embeddings", "http/openai/responses", "http/prefixes", "http/schema", "http/stream", "http/vllm",
        "runtime", "runtime/chat", "runtime/proxy", "runtime/timeline", "runtime/tokenizer",
    },
    "http/server": {
        "http/access", "http/anthropic", "http/intake", "http/ollama", "http/openai/responses", "http/routes",
        "http/stream", "runtime", "runtime/loaders/config", "runtime/proxy", "runtime/proxy/requests",
        "runtime/timeline", "runtime/tokenizer", "runtime/tracing",
    },
    **LAUNCHER_ARROWS,
}  # fmt: skip
FOUNDATION = "runtime/foundation"
# Third-party packages that only one room may import.
KEEPERS = {
    "zmq": "runtime/wire", "msgpack": "runtime/wire", "sanic": "http", "llguidance": "runtime/grammar",
    "jsonschema": "runtime/grammar", "aiohttp": "launcher/tools/bench", "matplotlib": "launcher/tools/bench",
    "httptools": "runtime/stages/media", "opentelemetry": "runtime/tracing", "prompt_toolkit": "launcher/commands",
    "rich": "launcher/commands",
}  # fmt: skip
