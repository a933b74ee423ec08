# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests: valid by strict schemas, and in agreement with the program that they start."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from manifests import (
    API_KEYS,
    BASE,
    DEPLOYMENTS,
    FIELDS,
    GPUS,
    IPV6,
    KUBERNETES,
    MONITORED,
    PLAIN,
    Manifest,
    PodTemplate,
    collected,
    keyed_copy,
    of_kind,
    pod_templates,
    rendered,
)
from served import ROOT

from pontil.launcher.cli import cli
from pontil.launcher.commands.unit_file import STOP_MARGIN
from pontil.launcher.foundation.version import VERSION
from pontil.launcher.host.devices import HostDevices
from pontil.launcher.options.options import LaunchOptions, read_options
from pontil.launcher.options.parsers import host_of
from pontil.launcher.plan.topology import Topology, plan
from pontil.launcher.supervisor.rollouts.rollout import DRAIN_MARGIN as RELEASE_WITHIN
from pontil.launcher.supervisor.supervisor import DRAIN_MARGIN, KILL_GRACE, TERM_GRACE

VERSION_OF_KUBERNETES = "1.37"
SCHEMAS = Path(__file__).parent / "schemas"
METRICS = ROOT / "docs" / "operate" / "metrics.md"
EIGHT_CORES = HostDevices(tuple(range(8)), 8, 1)
Deployments = Callable[[str], list[Manifest]]
EVERY = pytest.mark.parametrize("name", DEPLOYMENTS)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return keyed_copy(tmp_path_factory.mktemp("deploy"))


@pytest.fixture(scope="module")
def deployments(copy: Path) -> Deployments:
    """Return the manifests of a deployment, those with patches by kustomize."""
    known: dict[str, list[Manifest]] = {}

    def of(name: str) -> list[Manifest]:
        if name not in known:
            known[name] = collected(copy / name) if name in PLAIN else rendered(copy / name)
        return known[name]

    return of


def options_of(pod: PodTemplate) -> LaunchOptions:
    """Return the options of a pod's launch, read as `launch` does from its arguments, variables and file."""
    command, *words = pod.words
    assert command == "launch"
    with cli.commands["launch"].make_context("launch", words) as context:
        given = {name: value for name, value in context.params.items() if name not in ("config", "dry_run")}
    config = Path(pod.environment["PONTIL_CONFIG"])
    assert pod.volume_of(str(config))["configMap"]["name"].startswith("pontil-config")
    return read_options(given, KUBERNETES / BASE / config.name, pod.environment)


def plan_of(pod: PodTemplate, monkeypatch: pytest.MonkeyPatch) -> Topology:
    # The name of the Service has an address only in a cluster.
    monkeypatch.setattr("pontil.launcher.plan.workers.address_towards", lambda host: "10.1.2.9")
    return plan(options_of(pod), EIGHT_CORES, Path("/tmp/run"), Path("/cache"))


def validate(one: Manifest) -> None:
    """Check a manifest by the strict schema of its kind."""
    kubernetes = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is in the extra `test`")
    schema = SCHEMAS / f"{one['kind']}.json"
    if not schema.exists():
        kubernetes.validate(one, VERSION_OF_KUBERNETES, strict=True)
        return
    jsonschema.Draft202012Validator(json.loads(schema.read_text())).validate(one)
    group = one["spec"].get("leaderWorkerTemplate", {})
    for name in ("leaderTemplate", "workerTemplate"):
        if name in group:
            pods = {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": group[name]}
            kubernetes.validate(pods, VERSION_OF_KUBERNETES, strict=True)


@EVERY
def test_every_manifest_is_valid_by_strict_schemas(name: str, deployments: Deployments) -> None:
    for one in deployments(name):
        validate(one)


@pytest.mark.parametrize("name", PLAIN)
def test_kustomize_makes_of_them_what_is_read_here(name: str, copy: Path, deployments: Deployments) -> None:
    def names(found: list[Manifest]) -> set[tuple[str, str]]:
        return {(one["kind"], re.sub(r"-[0-9a-z]{10}$", "", one["metadata"]["name"])) for one in found}

    made = rendered(copy / name)
    assert names(made) == names(deployments(name))
    # The name of the configuration changes with its content, so that a change replaces the pods.
    (config,) = of_kind(made, "ConfigMap")
    assert {pod.volume_of("/etc/pontil/config")["configMap"]["name"] for pod in pod_templates(made)} == {config}


@EVERY
def test_each_pod_runs_a_launch_that_can_be_planned(
    name: str, deployments: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    pods = pod_templates(deployments(name))
    assert sorted(pod.role for pod in pods) == ["decode", "prefill", "proxy"]
    assert {pod.container["image"].rpartition(":")[2] for pod in pods} == {VERSION}
    for pod in pods:
        made = plan_of(pod, monkeypatch)
        (child,) = made.children
        number = pod.environment.get("PONTIL_FIRST_NUMBER")
        assert child.name == ("proxy" if pod.role == "proxy" else f"{pod.role}:{number}")
        # Within the CPU that the pod pays for there is a core for each worker.
        assert pod.role == "proxy" or int(pod.container["resources"]["limits"]["cpu"]) >= 1
        assert child.device.startswith("cuda") == ("nvidia.com/gpu" in pod.container["resources"]["limits"])


@EVERY
def test_the_files_of_a_launch_are_mounted(name: str, deployments: Deployments) -> None:
    found = deployments(name)
    (secret,) = of_kind(found, "Secret").values()
    for pod in pod_templates(found):
        options = options_of(pod)
        assert options.keys and bool(options.api_keys) == (pod.role == "proxy")
        for path in filter(None, (options.keys, options.api_keys)):
            volume = pod.volume_of(path)["secret"]
            assert volume["secretName"] == secret["metadata"]["name"]
            assert Path(path).name in {**secret.get("data", {}), **secret.get("stringData", {})}
            # As the launcher wants a file of root's that it reads by its group.
            assert volume["defaultMode"] == 0o440 and pod.spec["securityContext"]["fsGroup"]
        written = (options.usage_log, options.response_store, pod.environment["PONTIL_CACHE"], "/tmp/pontil-10001")
        for path in filter(None, written):
            volume = pod.volume_of(path)
            assert not pod.mount_of(path).get("readOnly") and {"emptyDir", "persistentVolumeClaim"} & set(volume), path
        for path in filter(None, (options.usage_log, options.response_store)):
            claim = pod.volume_of(path)["persistentVolumeClaim"]["claimName"]
            assert claim in of_kind(found, "PersistentVolumeClaim")


@EVERY
def test_ports_and_addresses_fit_together(name: str, deployments: Deployments) -> None:
    found = deployments(name)
    services, pods = of_kind(found, "Service"), pod_templates(found)
    (proxy,) = (pod for pod in pods if pod.role == "proxy")
    options = options_of(proxy)
    ports = {one["name"]: one["containerPort"] for one in proxy.container["ports"]}
    assert options.control and options.host == ("::" if name == IPV6 else "0.0.0.0") and ports["http"] == options.port
    assert options.control == f"tcp://10.1.2.3:{ports['control']}"
    for service in services.values():
        chosen = [pod for pod in pods if service["spec"]["selector"].items() <= pod.labels.items()]
        assert chosen, service
        for port in service["spec"].get("ports", []):
            assert all(port["targetPort"] in {one["name"] for one in pod.container["ports"]} for pod in chosen)
    for pod in pods:
        if pod is not proxy:
            join = options_of(pod).join
            assert join is not None
            control = services[str(host_of(join))]["spec"]
            assert [one["port"] for one in control["ports"]] == [int(join.rpartition(":")[2])]
            # The proxy becomes ready by the workers that reach it.
            assert control["publishNotReadyAddresses"] and control["selector"].items() <= proxy.labels.items()
    assert not services["pontil"]["spec"].get("publishNotReadyAddresses")


@EVERY
def test_probes_and_hooks_ask_for_what_exists(
    name: str, deployments: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    routes = set(re.findall(r'Endpoint\("GET", "([^"{]+)"', (ROOT / "http/routes/endpoint_table.py").read_text()))
    for pod in pod_templates(deployments(name)):
        container = pod.container
        probes = [container[one] for one in ("startupProbe", "readinessProbe", "livenessProbe") if one in container]
        for probe in probes:
            if "httpGet" in probe:
                assert probe["httpGet"]["path"] in routes
                assert probe["httpGet"]["port"] in {one["name"] for one in container["ports"]}
            else:
                understood(probe["exec"]["command"])
        assert "readinessProbe" in container
        if pod.role != "proxy":
            shell, flag, line = container["lifecycle"]["preStop"]["exec"]["command"]
            assert (shell, flag) == ("sh", "-c")
            words = shlex.split(line.replace("$PONTIL_FIRST_NUMBER", pod.environment["PONTIL_FIRST_NUMBER"]))
            (worker,) = plan_of(pod, monkeypatch).children
            assert words == ["exec", "pontil", "drain", worker.name] and understood(words[1:])
        else:
            assert container["readinessProbe"]["httpGet"]["path"] == "/ready"


@EVERY
def test_no_pod_is_killed_while_it_fetches_a_model(name: str, deployments: Deployments) -> None:
    """A hundred gigabytes at 20 MB/s take less than two hours."""
    for pod in pod_templates(deployments(name)):
        start = pod.container.get("startupProbe")
        if start is None:
            assert "livenessProbe" not in pod.container
        else:
            assert start["periodSeconds"] * start["failureThreshold"] >= 7200


@EVERY
def test_the_control_endpoint_is_right_for_an_address_of_either_family(
    name: str, deployments: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The address that is bound is as the engine writes it: of IPv6 without brackets."""
    (proxy,) = (pod for pod in pod_templates(deployments(name)) if pod.role == "proxy")
    for address, host in (("10.1.2.3", "10.1.2.3"), ("fd00:10:244::1:7", "[fd00:10:244::1:7]")):
        monkeypatch.setitem(FIELDS, "status.podIP", address)
        assert options_of(proxy).control == f"tcp://{host}:7000"


def test_workers_on_gpus_have_all_memory_of_theirs_and_more_of_the_host(
    deployments: Deployments, monkeypatch: pytest.MonkeyPatch
) -> None:
    def resources(name: str, role: str) -> dict[str, str]:
        (pod,) = (pod for pod in pod_templates(deployments(name)) if pod.role == role)
        found = pod.container["resources"]
        assert found["requests"] == found["limits"], "a pod of its own cores"
        return dict(found["limits"])

    for role in ("prefill", "decode"):
        plain, gpus = resources(BASE, role), resources(GPUS, role)
        assert gpus["nvidia.com/gpu"] == "1" and int(gpus["cpu"]) > int(plain["cpu"])
        assert int(gpus["memory"].removesuffix("Gi")) > 2 * int(plain["memory"].removesuffix("Gi"))
    for pod in pod_templates(deployments(GPUS)):
        if pod.role == "proxy":
            continue
        assert options_of(pod).kv_cache_memory is None
        assert {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"} in pod.spec["tolerations"]
        (claim,) = of_kind(deployments(GPUS), "StatefulSet")[f"pontil-{pod.role}"]["spec"]["volumeClaimTemplates"]
        assert claim["spec"]["resources"]["requests"]["storage"] == "200Gi"


def understood(words: list[str]) -> bool:
    """Parse a command line of ours without running it."""
    program, command, *rest = words
    with cli.commands[command].make_context(command, rest):
        return program == "pontil"


@EVERY
def test_a_pod_is_killed_only_after_its_launch_has_had_its_time(name: str, deployments: Deployments) -> None:
    for pod in pod_templates(deployments(name)):
        drain, hook = options_of(pod).drain_timeout, pod.container["lifecycle"]["preStop"]
        before = hook["sleep"]["seconds"] if "sleep" in hook else drain + RELEASE_WITHIN
        end = DRAIN_MARGIN + TERM_GRACE + KILL_GRACE + STOP_MARGIN
        # Requests that preStop has drained are not drained again.
        assert pod.spec["terminationGracePeriodSeconds"] >= before + (drain if "sleep" in hook else 0) + end


@EVERY
def test_pods_have_no_rights_that_they_do_not_need(name: str, deployments: Deployments) -> None:
    for pod in pod_templates(deployments(name)):
        whole, own = pod.spec["securityContext"], pod.container["securityContext"]
        assert whole["runAsNonRoot"] and whole["runAsUser"] > 0 and whole["seccompProfile"]["type"] == "RuntimeDefault"
        assert own == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert pod.spec["automountServiceAccountToken"] is False
        assert (
            set(pod.container["resources"]) == {"requests", "limits"}
            and "memory" in pod.container["resources"]["limits"]
        )
        assert not any("hostPath" in volume for volume in pod.spec["volumes"])


@EVERY
def test_budgets_autoscalers_and_monitors_choose_what_is_there(name: str, deployments: Deployments) -> None:
    found = deployments(name)
    labels = [pod.labels for pod in pod_templates(found)]
    for budget in of_kind(found, "PodDisruptionBudget").values():
        assert any(budget["spec"]["selector"]["matchLabels"].items() <= one.items() for one in labels)
    for scaler in of_kind(found, "HorizontalPodAutoscaler").values():
        target = scaler["spec"]["scaleTargetRef"]
        assert scaler["spec"]["minReplicas"] <= of_kind(found, target["kind"])[target["name"]]["spec"]["replicas"]
        for metric in scaler["spec"]["metrics"]:
            assert metric["external"]["metric"]["name"] in adapted()
    for monitor in of_kind(found, "ServiceMonitor").values():
        chosen = [
            one for one in of_kind(found, "Service").values()
            if monitor["spec"]["selector"]["matchLabels"].items() <= one["metadata"]["labels"].items()
        ]  # fmt: skip
        (endpoint,), (service,) = monitor["spec"]["endpoints"], chosen
        assert (
            endpoint["port"] in {port["name"] for port in service["spec"]["ports"]} and endpoint["path"] == "/metrics"
        )
        (secret,) = of_kind(found, "Secret").values()
        assert endpoint["authorization"]["credentials"]["name"] == secret["metadata"]["name"]
        assert endpoint["authorization"]["credentials"]["key"] in {
            **secret.get("data", {}),
            **secret.get("stringData", {}),
        }


def adapted() -> set[str]:
    """Return the metrics that prometheus-adapter makes by the rules beside the autoscalers, each of a series that the
    proxy has."""
    rules = yaml.safe_load((KUBERNETES / "components/autoscaling/prometheus-adapter-values.yaml").read_text())
    series = dict(re.findall(r"^\| `(pontil\w*)\{(\w+)\}` \| gauge \|", METRICS.read_text(), re.MULTILINE))
    made = set()
    for rule in rules["rules"]["external"]:
        name, _, labels = rule["seriesQuery"].partition("{")
        label = series[name]
        # A scaler chooses by the label, which the query must keep.
        assert f'{label}!=""' in labels and rule["metricsQuery"].endswith(f"by ({label})")
        made.add(rule["name"]["as"])
    return made


def test_each_kind_of_worker_is_scaled_by_what_it_needs(deployments: Deployments) -> None:
    """Each pod is one of the workers that are wanted."""
    scalers = of_kind(deployments(MONITORED), "HorizontalPodAutoscaler")
    for kind in ("prefill", "decode"):
        (metric,) = scalers[f"pontil-{kind}"]["spec"]["metrics"]
        external = metric["external"]
        assert {external["metric"]["name"]} == adapted()
        assert external["metric"]["selector"] == {"matchLabels": {"role": kind}}
        assert external["target"] == {"type": "AverageValue", "averageValue": "1"}


def changed(one: Manifest, path: str, value: Any) -> Manifest:
    """Return a copy of a manifest with another value at a path; a field that is not there is added."""
    copy = json.loads(json.dumps(one))
    *way, last = path.split("/")
    place = copy
    for step in way:
        place = place[int(step)] if step.isdigit() else place[step]
    place[last] = value
    return dict(copy)


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", "spec/template/spec/terminationGraceSeconds", 3),
        ("StatefulSet", "spec/replicas", "two"),
        ("Service", "spec/publishNotReadyAdresses", True),
        ("PodDisruptionBudget", "spec/selector/labels", {}),
        ("ServiceMonitor", "spec/endpoints/0/bearer", "x"),
        ("HorizontalPodAutoscaler", "spec/metrics/0/external/target/values", "1"),
    ],
)
def test_a_misspelt_field_is_found(kind: str, path: str, value: object, deployments: Deployments) -> None:
    pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is in the extra `test`")
    one = next(iter(of_kind(deployments(MONITORED), kind).values()))
    validate(one)
    with pytest.raises(Exception, match=r"(?i)additional propert|is not of type|not valid") as found:
        validate(changed(one, path, value))
    assert "Validation" in type(found.value).__name__


def test_the_resolver_refuses_what_it_does_not_know(tmp_path: Path) -> None:
    (tmp_path / "kustomization.yaml").write_text("resources: []\npatches: []\n")
    with pytest.raises(AssertionError):
        collected(tmp_path)
    assert API_KEYS.count("=") == 2
