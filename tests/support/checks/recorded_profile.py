# SPDX-License-Identifier: Apache-2.0
"""A small profile: a worker whose steps take 10 ms, 1 ms for each row and prompt token, and some for what they read."""

from pontil.runtime.planner.device_profile import DeviceProfile, HostTimes, ProfiledModel, StepTimes, WorkerSizes
from pontil.runtime.planner.step_costs import StepWork

BASE, ROW, TOKEN, READ, SHARED = 10.0, 1.0, 0.5, 1e-3, 8.0


def milliseconds(work: StepWork) -> float:
    """Return what a step takes: as its base is there once, a step of both kinds is shorter than one of each."""
    decode = (BASE + ROW * work.rows + READ * work.read) if work.rows else 0.0
    prompt = (BASE + TOKEN * work.tokens + READ * work.prompt_read) if work.tokens else 0.0
    return decode + prompt - (SHARED if work.rows and work.tokens else 0.0)


def small_profile(**sizes: int) -> DeviceProfile:
    steps = [StepWork(rows, rows * context, 0, 0) for rows in (1, 8, 64) for context in (16, 256)]
    steps += [StepWork(0, 0, tokens, tokens * before) for tokens in (16, 64, 256) for before in (0, 512)]
    steps += [StepWork(rows, 128 * rows, 64, 64 * 32) for rows in (1, 8)]
    points = tuple((float(one.rows), one.read, float(one.tokens), one.prompt_read, milliseconds(one)) for one in steps)
    about = ProfiledModel("small", "abc", "0", "a processor", "cpu", 1, "generic", "float32", "auto")
    usual = {"max_model_len": 2048, "block_tokens": 16, "block_bytes": 4096, "blocks": 1024, "weight_bytes": 1 << 20,
             "seats": 16, "step_tokens": 256, "interleaved_tokens": 64}  # fmt: skip
    host = HostTimes(0.1, 0.02, 0.5, 0.05, 4.0)
    return DeviceProfile(about, WorkerSizes(**(usual | sizes)), StepTimes(points, ((1.0, 0.2), (16.0, 1.0))), host)
