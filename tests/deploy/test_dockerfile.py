# SPDX-License-Identifier: Apache-2.0
"""The Dockerfile: its paths exist, it agrees with the manifests, and our steps work. No image is built."""

import configparser
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml
from manifests import BASE, KUBERNETES, collected, keyed_copy, pod_templates
from served import ROOT

from pontil.launcher.foundation.version import VERSION

FILE = ROOT / "deploy" / "docker" / "Dockerfile"
IGNORED = FILE.with_name("Dockerfile.dockerignore")
Instruction = tuple[str, str]


def instructions() -> list[Instruction]:
    """Return the instructions with their arguments, in order."""
    lines = [line for line in FILE.read_text().splitlines() if line and not line.startswith("#")]
    found = []
    for line in " \n".join(lines).replace("\\ \n", " ").split("\n"):
        word, _, rest = line.strip().partition(" ")
        assert re.fullmatch("ARG|FROM|RUN|WORKDIR|COPY|ENV|USER|ENTRYPOINT|CMD", word), line
        found.append((word, rest.strip()))
    return found


def stages() -> list[list[Instruction]]:
    found: list[list[Instruction]] = []
    for one in instructions():
        if one[0] == "FROM":
            found.append([])
        if found:
            found[-1].append(one)
    return found


def told(stage: list[Instruction], word: str) -> list[str]:
    return [rest for name, rest in stage if name == word]


def sources() -> list[str]:
    """Return the paths that are copied from the checkout."""
    copied = [rest.split() for rest in told(stages()[0], "COPY")]
    return [one for words in copied for one in words[:-1]]


def test_what_is_copied_exists_and_is_sent_to_the_builder() -> None:
    assert sources() and all((ROOT / one).exists() for one in sources())
    allowed = [line.removeprefix("!") for line in IGNORED.read_text().splitlines() if line.startswith("!")]
    assert sorted(allowed) == sorted(sources())
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    rooms = {path.partition("/")[0].strip() for path in re.findall(r"= (\S+)", setup["options"]["package_dir"])}
    assert rooms | {"setup.cfg", "pyproject.toml", setup["metadata"]["license_files"]} <= set(sources())


def test_the_last_stage_has_no_compiler_no_root_and_the_program() -> None:
    """An image for GPUs has the compiler that Triton starts, and has tried it."""
    first, last = stages()
    plain = re.sub(r"\$\{GPU:\+[^}]*\}", "", " ".join(told(last, "RUN")))
    assert "g++" in " ".join(told(first, "RUN")) and not re.search(r"\b(g\+\+|gcc|clang)", plain)
    assert "${GPU:+gcc libc6-dev}" in told(last, "RUN")[0] and "gpu_ops.triton.smoke" in told(last, "RUN")[1]
    assert told(last, "USER") == ["10001:10001"] and last.index(("USER", "10001:10001")) > 0
    names = [name for name, _ in last]
    assert "RUN" not in names[names.index("USER") :], "nothing is installed as another user"
    (entry,), (command,) = (
        (json.loads(one) for one in told(last, "ENTRYPOINT")),
        (json.loads(one) for one in told(last, "CMD")),
    )
    assert entry == ["tini", "--", "pontil"] and command[0] == "launch"
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert "pontil = " in setup["options.entry_points"]["console_scripts"]
    ((source, target),) = (rest.split()[1:] for rest in told(last, "COPY") if rest.startswith("--from=build "))
    assert source == target and f"PATH={target}/bin:" in " ".join(told(last, "ENV"))
    assert all(f"{target}/bin/python" in one or "apt-get" in one or "venv" in one for one in told(first, "RUN"))


def test_the_manifests_run_this_image(tmp_path: Path) -> None:
    for pod in pod_templates(collected(keyed_copy(tmp_path) / BASE)):
        assert [str(pod.spec["securityContext"][name]) for name in ("runAsUser", "runAsGroup")] == ["10001", "10001"]
        assert "command" not in pod.container, "the image's entry point gets the arguments"
    assert f"pontil:{VERSION} " in FILE.read_text()
    assert yaml.safe_load((KUBERNETES / BASE / "kustomization.yaml").read_text())["kind"] == "Kustomization"


@pytest.mark.long
def test_the_steps_that_install_work_and_leave_kernels_that_need_no_compiler(tmp_path: Path) -> None:
    """Run them in a folder with the copied files alone. What is installed here stands in for what pip would fetch."""
    checkout, target = tmp_path / "src", tmp_path / "pontil"
    checkout.mkdir()
    for name in sources():
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    shutil.rmtree(checkout / "gpu_ops" / "prebuilt", ignore_errors=True)
    place, steps = checkout, 0
    for word, rest in stages()[0]:
        if word == "WORKDIR":
            place = tmp_path if rest == "/" else checkout
        elif word == "RUN" and "apt-get" not in rest:
            steps += 1
            line = rest.replace("/opt/pontil", str(target)).replace("python -m venv", f"{sys.executable} -m venv")
            line = line.replace("pip install --no-cache-dir", "pip install --no-cache-dir --no-deps")
            done = subprocess.run(["sh", "-c", line], cwd=place, capture_output=True, text=True, timeout=900)
            assert done.returncode == 0, (line, done.stderr)
            if "venv" in line:
                (site,) = target.glob("lib/python*/site-packages")
                (site / "others.pth").write_text(sysconfig.get_paths()["purelib"])
    assert steps == 3
    made = sorted(path.name for path in (site / "pontil" / "gpu_ops" / "prebuilt").iterdir())
    assert len(made) in (1, 5), made
    script = (
        "from pathlib import Path\n"
        "from pontil.gpu_ops.kernels.kernel_set import open_kernels\n"
        "print(open_kernels('auto', 1, Path('cache')).name)\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PATH": str(target / "bin")
    }
    done = subprocess.run(
        [target / "bin" / "python", "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
    assert not (tmp_path / "cache").exists(), "nothing was compiled or written"


@pytest.mark.long
@pytest.mark.parametrize("headers", [pytest.param(True, marks=pytest.mark.long), False])
def test_a_machine_on_which_triton_cannot_start_is_told(tmp_path: Path, headers: bool) -> None:
    """A compiler without the headers of the C library is not enough."""
    pytest.importorskip("triton", reason="torch's build for CPUs has no Triton")
    compiler = tmp_path / "cc"
    compiler.write_text(f'#!/bin/sh\nexec {shutil.which("gcc")} {"" if headers else "-nostdinc"} "$@"\n')
    compiler.chmod(0o755)
    environment = os.environ | {"CC": str(compiler), "TRITON_CACHE_DIR": str(tmp_path / "cache")}
    command = [sys.executable, "-m", "pontil.gpu_ops.triton.smoke"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == (0 if headers else 1), done.stderr
    if not headers:
        assert "install gcc and libc6-dev" in done.stderr and "Traceback" not in done.stderr
