# SPDX-License-Identifier: Apache-2.0
"""The processor time of the nodes of speech, on one thread: loading, the first sentence, a second of speech.

    python scripts/bench_speech.py [--rounds 5]

Each figure is the median over rounds. Needs the extra `pontil[speech]`; weights that are missing are fetched.
"""

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

# Read by libraries when they are imported.
os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import app  # noqa: E402, F401
from pontil.runtime.loaders.builtin import resolve_model  # noqa: E402
from pontil.runtime.stages.nodes.recognizer import Recognizer  # noqa: E402
from pontil.runtime.stages.nodes.speaker import Speaker  # noqa: E402

CACHE = Path("~/.cache/pontil")
FIRST = "The capital of France is Paris. "
REST = (
    "It lies on the river Seine, and about two million people live there. Many visitors come to see its museums, "
    "its churches, and the tower that was built for the world's fair of 1889."
)


def median_of(rounds: int, work: Callable[[], object]) -> float:
    """Return the median processor time of a call, in seconds."""
    took = []
    for _ in range(rounds):
        began = time.process_time()
        work()
        took.append(time.process_time() - began)
    return statistics.median(took)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    names = {"recognizer": "whisper-tiny.en", "answerer": "smollm2-135m-instruct", "speaker": "hibari-heart"}
    paths = {node: resolve_model(name, CACHE) for node, name in names.items()}
    speaker, recognizer = Speaker(paths["speaker"]), Recognizer(paths["recognizer"])
    first, speech = speaker.speak(FIRST), b"".join(speaker.stream([FIRST, REST]))
    rate = 2 * speaker.rate
    print("| what | seconds of audio | processor time, s | for a second of audio, s |")
    print("|---|---|---|---|")
    for what, seconds, work in (
        ("load the speaker", 0.0, lambda: Speaker(paths["speaker"]).speak(FIRST)),
        ("load the recognizer", 0.0, lambda: Recognizer(paths["recognizer"])),
        ("speak one sentence", len(first) / rate, lambda: speaker.speak(FIRST)),
        ("speak three sentences", len(speech) / rate, lambda: list(speaker.stream([FIRST, REST]))),
        ("recognize one sentence", len(first) / rate, lambda: recognizer.recognize(first, speaker.rate)),
        ("recognize three sentences", len(speech) / rate, lambda: recognizer.recognize(speech, speaker.rate)),
    ):
        took = median_of(args.rounds, work)
        audio = f"{seconds:.1f} | {took:.3f} | {took / seconds:.4f}" if seconds else f"– | {took:.3f} | –"
        print(f"| {what} | {audio} |")
    print(f"heard: {recognizer.recognize(speech, speaker.rate).text}")


if __name__ == "__main__":
    main()
