# SPDX-License-Identifier: Apache-2.0
"""Replay recorded conversations over one worker of a model with recurrent layers, in virtual time: the part of what
turns repeat that it finds, by the boundaries of its states and by its memory.

    python scripts/replay_states.py --memory 32 64 128

The scheduler, the pool and the prefix cache are the server's own; the model draws any ids. A block takes --kv-mib for
256 positions and --state-mib for its states, by default those of Qwen3-Next 80B. Without --memory the pool has room for
all. One line is printed for each pair: boundary, GiB (0: all), blocks, part that was found, blocks that were copied for
each turn.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), *map(str, sorted((ROOT / "tests/support").iterdir()))]

from conversation_replay import ConversationReplay, states_layout  # noqa: E402
from recorded_load import recorded_conversations  # noqa: E402

import app  # noqa: E402, F401

EVERYTHING = 20_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--boundaries", type=int, nargs="+", default=[64, 128, 256, 512, 1024])
    parser.add_argument("--memory", type=float, nargs="+", default=[0.0], help="GiB of the pool; 0: as much as needed")
    parser.add_argument("--conversations", type=int, default=1279)
    parser.add_argument("--rate", type=float, default=1.0, help="conversations that begin each second")
    parser.add_argument("--pause", type=float, default=30.0, help="mean seconds before a later turn")
    parser.add_argument("--kv-mib", type=float, default=6.0)
    parser.add_argument("--state-mib", type=float, default=75.0)
    return parser.parse_args()


def main() -> None:
    options = arguments()
    conversations = recorded_conversations()[: options.conversations]
    for memory in options.memory:
        for boundary in options.boundaries:
            block_mib = options.state_mib + options.kv_mib * boundary / 256
            blocks = int(memory * 1024 / block_mib) or EVERYTHING * 256 // boundary
            replay = ConversationReplay(states_layout(boundary), blocks)
            replay.run(conversations, options.rate, options.pause)
            print(
                f"boundary {boundary:5} memory {memory:5.0f} blocks {blocks:6} found {replay.share:.4f} "
                f"copied {replay.copied / replay.turns:.2f}",
                flush=True,
            )


if __name__ == "__main__":
    main()
