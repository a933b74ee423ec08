# SPDX-License-Identifier: Apache-2.0
"""Kernels of attention with planted faults, which cases must show."""

import importlib.util
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from unittest.mock import patch

import attention_cases
import torch
from ladder import KernelCase, Results

from pontil.gpu_ops.triton import decode_attention, paged_kv, prompt_attention, softmax


@dataclass(frozen=True, slots=True)
class Fault:
    """The text `right` of a function is `wrong`. The modules `users` call it. The `case` shows it."""

    name: str
    case: str
    module: ModuleType
    function: str
    right: str
    wrong: str
    users: tuple[ModuleType, ...]

    def source(self) -> str:
        """Return the text of the module, in which `right` is there once."""
        text = Path(str(self.module.__file__)).read_text()
        assert text.count(self.right) == 1, f"{self.name} is not where it was"
        return text


CHUNK = (softmax, "add_chunk")
BOTH = (decode_attention, prompt_attention)
FAULTS = [
    Fault("hides-its-own-key", "prompt-float32", *CHUNK, "<= asking", "< asking", BOTH),
    Fault("sees-the-next-key", "prompt-float32", *CHUNK, "<= asking[:, None]", "<= asking[:, None] + 1", BOTH),
    Fault("window-too-long", "prompt-float16-window-sinks", *CHUNK, "> asking", ">= asking", BOTH),
    Fault("window-too-long-decode", "decode-float32-window-sinks", *CHUNK, "> asking", ">= asking", BOTH),
    Fault("reads-behind-the-end", "decode-float32", *CHUNK, "positions < end", "positions < end + 1",
          BOTH),
    Fault("forgets-the-scales-of-values", "decode-fp8-float32-window-sinks", *CHUNK, "weights *= scales_at(",
          "weights += 0 * scales_at(", BOTH),
    Fault("rounds-ties-up", "written-fp8", paged_kv, "float_cells", "((size >> 20) & 1)", "1", (paged_kv,)),
    Fault("stores-padding", "decode-float32", paged_kv, "write_kernel", "slot < 0", "slot < -1", (paged_kv,)),
    Fault("leaves-out-a-strip", "decode-float32", decode_attention, "combine_kernel", "strip in range(0, count)",
          "strip in range(0, count - (count > 1))", (decode_attention,)),
]  # fmt: skip


@contextmanager
def planted(fault: Fault) -> Iterator[None]:
    """Give the function's users one made of the faulty text."""
    source = fault.source()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as patches:
        path = Path(folder) / "faulty.py"
        path.write_text(source.replace(fault.right, fault.wrong))
        spec = importlib.util.spec_from_file_location("faulty", path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        for user in fault.users:
            patches.enter_context(patch.object(user, fault.function, getattr(made, fault.function)))
        yield


def faulty(fault: Fault) -> KernelCase:
    (case,) = (case for case in attention_cases.CASES if case.name == fault.case)

    def call(device: torch.device) -> Results:
        with planted(fault):
            return case.call(device)

    return replace(case, name=fault.name, call=call)


CASES = [faulty(fault) for fault in FAULTS]
