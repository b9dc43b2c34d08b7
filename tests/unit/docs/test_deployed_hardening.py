"""The rights of nodes that are deployed as services: few, and those that the documentation names."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
UNIT = (ROOT / "deploy/systemd/eflow-node.service").read_text()
MANIFESTS = ("nodes.yaml", "pool.yaml")  # of Kubernetes; rendered from the Helm chart
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text()
PAGE = (ROOT / "docs/how-to/secure-a-pool.md").read_text()

UNIT_SETTINGS = {
    "User": "elasticflow",
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "full",
    "PrivateTmp": "yes",
    "RestrictSUIDSGID": "yes",
    "RestrictRealtime": "yes",
    "LockPersonality": "yes",
    "ProtectHostname": "yes",
    "Delegate": "memory pids",
}
# Of the unit: how it starts and ends, and limits of resources.
OTHER_SETTINGS = {
    "EnvironmentFile",
    "ExecStart",
    "KillMode",
    "TimeoutStopSec",
    "Restart",
    "RestartSec",
    "LimitMEMLOCK",
    "LimitNOFILE",
}
POD = {"runAsNonRoot": True, "runAsUser": 10001, "fsGroup": 10001}
CONTAINER = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
OF_THE_CLUSTER = {"automountServiceAccountToken": False, "enableServiceLinks": False}
OF_SERVICES = {"seccompProfile": {"type": "RuntimeDefault"}}  # it forbids the namespaces of workers


def service_settings() -> dict[str, str]:
    """Those of [Service]; each is set once."""
    found = re.findall(r"^(\w+)=(.*)$", UNIT.partition("[Service]")[2].partition("\n[")[0], re.M)
    assert len(dict(found)) == len(found)
    return dict(found)


def pods(manifest: str) -> dict[str, dict[str, Any]]:
    """The specification of each pod, by the name of its first container."""
    objects = yaml.safe_load_all((ROOT / "deploy/kubernetes" / manifest).read_text())
    specs = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
    return {spec["containers"][0]["name"]: spec for spec in specs}


def written(settings: dict[str, Any]) -> set[str]:
    """As the documentation writes them."""
    texts = (yaml.safe_dump({name: value}, default_flow_style=True, width=1000) for name, value in settings.items())
    return {text.strip()[1:-1] for text in texts}


def documented(file: str) -> set[str]:
    """The settings in the rows of the page's table for this file."""
    rows = re.search(rf"^\| `{re.escape(file)}` \|.*\n(?:\| \|.*\n)*", PAGE, re.M)
    assert rows is not None
    return {name for row in rows[0].splitlines() for name in re.findall(r"`([^`]+)`", row.split("|")[2])}


def test_the_unit_gives_a_node_no_rights_that_it_does_not_need() -> None:
    settings = service_settings()
    assert {name: value for name, value in settings.items() if name not in OTHER_SETTINGS} == UNIT_SETTINGS


@pytest.mark.parametrize(
    "name",
    [
        "PrivateDevices",  # GPUs
        "ProtectProc",  # workers mount their own /proc, which the kernel refuses where a part of it is hidden
        "ProcSubset",
        "ProtectKernelTunables",
        "ProtectKernelLogs",
        "RestrictNamespaces",
        "PrivateUsers",
        "SystemCallFilter",
        "MemoryDenyWriteExecute",  # compiled loops
        "ProtectControlGroups",  # control groups of workers
    ],
)
def test_the_unit_forbids_nothing_that_isolation_and_training_need(name: str) -> None:
    assert name not in service_settings()


@pytest.mark.parametrize("manifest", MANIFESTS)
def test_a_pod_runs_as_the_user_of_the_image_without_rights(manifest: str) -> None:
    for name, pod in pods(manifest).items():
        assert pod["securityContext"].items() >= POD.items(), name
        assert pod.items() >= OF_THE_CLUSTER.items(), name
        assert not [key for key in pod if key.startswith("host") or key == "shareProcessNamespace"], name
        assert not [volume for volume in pod.get("volumes", []) if "hostPath" in volume], name
        for container in pod["containers"]:
            assert container["securityContext"] == (CONTAINER if name == "node" else CONTAINER | OF_SERVICES), name
        for container in pod.get("initContainers", []):
            assert container["securityContext"] == CONTAINER, name


def test_the_manifests_have_all_services_and_nodes() -> None:
    assert set(pods("nodes.yaml")) == {"node"}
    services = {"admission", "allocator", "placement", "monitor"}
    assert set(pods("pool.yaml")) == {"node", "configuration", *services}


def test_each_image_ends_as_the_user_that_is_not_root() -> None:
    assert re.search(r"^RUN useradd .*--uid 10001 .*elasticflow$", DOCKERFILE, re.M)
    stages = re.split(r"^FROM .* AS (\w+)$", DOCKERFILE, flags=re.M)
    bodies = dict(zip(stages[1::2], stages[2::2], strict=True))
    for target in ("control", "executor"):
        assert re.findall(r"^USER (\w+)$", bodies[target], re.M) == ["elasticflow"], target


def test_the_page_names_what_the_files_set() -> None:
    assert documented("eflow-node.service") == {f"{name}={value}" for name, value in UNIT_SETTINGS.items()}
    assert documented("nodes.yaml") == written(POD | CONTAINER | OF_THE_CLUSTER)
    assert documented("pool.yaml") == written(OF_SERVICES)


@pytest.mark.parametrize("folder", ["how-to", "adr"])
def test_other_pages_delegate_what_the_unit_delegates(folder: str) -> None:
    pages = (file.read_text() for file in (ROOT / "docs" / folder).glob("*.md"))
    named = [value for page in pages for value in re.findall(r"Delegate=([^`\n]*)`", page)]
    assert set(named) == {UNIT_SETTINGS["Delegate"]}
