# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests of `deploy/kubernetes/`, as kustomize puts them together, and what their pods are told."""

import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from served import ROOT

from pontil.launcher.keys.key_file import make_key_file

KUBERNETES = ROOT / "deploy" / "kubernetes"
BASE, MONITORED = "base", "overlays/monitored"
GPUS, IPV6 = "overlays/gpus", "overlays/ipv6"
DEPLOYMENTS = (BASE, MONITORED, GPUS, IPV6, "overlays/leader-worker-set")
# Those that kustomize only collects, without patches, so that they can be read without it.
PLAIN = (BASE, MONITORED)
API_KEYS = "clients=0123456789abcdef\nmetrics=fedcba9876543210\n"
# Values that the engine sets for a pod: its address, its number in a StatefulSet or that of its group.
FIELDS = {
    "status.podIP": "10.1.2.3",
    "metadata.labels['apps.kubernetes.io/pod-index']": "3",
    "metadata.labels['leaderworkerset.sigs.k8s.io/group-index']": "4",
}
Manifest = dict[str, Any]


@dataclass(frozen=True)
class PodTemplate:
    """The template of a workload's pods. `claims` are the volumes that the workload makes for each pod."""

    owner: str
    labels: Mapping[str, str]
    spec: Mapping[str, Any]
    claims: Sequence[str] = ()

    @property
    def container(self) -> Mapping[str, Any]:
        (only,) = self.spec["containers"]
        return dict(only)

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the container, with values for the fields that the engine fills in."""
        return {
            one["name"]: one["value"] if "value" in one else FIELDS[one["valueFrom"]["fieldRef"]["fieldPath"]]
            for one in self.container["env"]
        }

    @property
    def words(self) -> list[str]:
        """The arguments of the container, with the variables that the engine replaces in them."""
        variables = self.environment
        return [re.sub(r"\$\((\w+)\)", lambda found: variables[found[1]], word) for word in self.container["args"]]

    @property
    def role(self) -> str:
        return next(word.removeprefix("--role=") for word in self.words if word.startswith("--role="))

    def mount_of(self, path: str) -> Mapping[str, Any]:
        """Return the innermost mount below which a path lies."""
        mounts = [one for one in self.container["volumeMounts"] if Path(path).is_relative_to(one["mountPath"])]
        assert mounts, f"{self.owner} has nothing mounted at {path}"
        return dict(max(mounts, key=lambda one: len(one["mountPath"])))

    def volume_of(self, path: str) -> Mapping[str, Any]:
        name = self.mount_of(path)["name"]
        if name in self.claims:
            return {"name": name, "persistentVolumeClaim": {"claimName": name}}
        return dict(next(one for one in self.spec["volumes"] if one["name"] == name))


def keyed_copy(folder: Path) -> Path:
    """Copy the manifests to a folder and make keys for them there."""
    copy = folder / "kubernetes"
    shutil.copytree(
        KUBERNETES, copy, ignore=lambda where, names: [one for one in names if one.endswith((".keys", ".key"))]
    )
    keys = copy / "base" / "keys"
    make_key_file(keys / "pontil.keys")
    (keys / "api.keys").write_text(API_KEYS)
    (keys / "metrics.key").write_text("fedcba9876543210")
    return copy


def rendered(folder: Path) -> list[Manifest]:
    """Return the manifests as kubectl's kustomize makes them, which needs no cluster."""
    if shutil.which("kubectl") is None:
        pytest.skip("patches of manifests are applied by `kubectl kustomize`, and kubectl is not installed")
    done = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def collected(folder: Path) -> list[Manifest]:
    """Return the manifests of a kustomization without patches: its resources, and what it generates under plain
    names."""
    told = yaml.safe_load((folder / "kustomization.yaml").read_text())
    assert not set(told) - {
        "apiVersion",
        "kind",
        "labels",
        "resources",
        "components",
        "configMapGenerator",
        "secretGenerator",
    }
    found: list[Manifest] = []
    for name in [*told.get("resources", []), *told.get("components", [])]:
        there = folder / name
        found += collected(there) if there.is_dir() else [one for one in yaml.safe_load_all(there.read_text()) if one]
    return found + [*generated(told, folder)]


def generated(told: Mapping[str, Any], folder: Path) -> Iterator[Manifest]:
    for field, kind, part in (("configMapGenerator", "ConfigMap", "data"), ("secretGenerator", "Secret", "stringData")):
        for one in told.get(field, []):
            files = {Path(name).name: (folder / name).read_text() for name in one["files"]}
            yield {"apiVersion": "v1", "kind": kind, "metadata": {"name": one["name"]}, part: files}


def pod_templates(manifests: Sequence[Manifest]) -> list[PodTemplate]:
    """Return the pod templates of all workloads."""
    found = []
    for one in manifests:
        spec, name = one.get("spec", {}), f"{one['kind']}/{one['metadata']['name']}"
        claims = tuple(claim["metadata"]["name"] for claim in spec.get("volumeClaimTemplates", []))
        group = spec.get("leaderWorkerTemplate", {})
        templates = [spec.get("template"), group.get("leaderTemplate"), group.get("workerTemplate")]
        found += [
            PodTemplate(name, made["metadata"]["labels"], made["spec"], claims)
            for made in templates
            if made is not None
        ]
    return found


def of_kind(manifests: Sequence[Manifest], kind: str) -> dict[str, Manifest]:
    """Return the manifests of a kind by name."""
    return {one["metadata"]["name"]: one for one in manifests if one["kind"] == kind}
