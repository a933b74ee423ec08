# SPDX-License-Identifier: Apache-2.0
"""Compile one kernel and one C module, as Triton does when a worker starts, on a machine without a GPU:

    python -m pontil.gpu_ops.triton.smoke

Ends with 1 and a sentence if that cannot be done here.
"""

import subprocess
import sys

MODULE = """
#include <Python.h>
#include <dlfcn.h>
#include <stdlib.h>
static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "pontil_smoke", NULL, -1, NULL};
PyMODINIT_FUNC PyInit_pontil_smoke(void) { return PyModule_Create(&definition); }
"""


def compile_both() -> None:
    """Raise OSError, RuntimeError, ImportError or CalledProcessError where Triton could not start."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    from triton.runtime.build import compile_module_from_src

    from pontil.gpu_ops.triton.norm import rms_norm_kernel

    types = {"x": "*fp32", "weight": "*fp32", "out": "*fp32", "x_stride": "i32", "head_stride": "i32", "eps": "fp32"}
    constants = {"HEADS": 1, "SIZE": 64, "BLOCK": 64}
    source = ASTSource(rms_norm_kernel, types | dict.fromkeys(constants, "constexpr"), constants)
    triton.compile(source, target=GPUTarget("cuda", 80, 32))
    compile_module_from_src(MODULE, "pontil_smoke")


def main() -> int:
    try:
        compile_both()
    except (OSError, RuntimeError, ImportError, subprocess.CalledProcessError) as error:
        print(
            f"Triton cannot compile here ({error}): install gcc and libc6-dev, and the headers of Python",
            file=sys.stderr,
        )
        return 1
    print("Triton can compile here")
    return 0


if __name__ == "__main__":
    sys.exit(main())
