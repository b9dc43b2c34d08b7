"""The rights of nodes that are deployed as services: few, and those that the documentation names."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
UNIT = (ROOT / "deploy/systemd/eflow-node.service").read_text()
MANIFEST = (ROOT / "deploy/kubernetes/nodes.yaml").read_text()
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
POD = ("runAsNonRoot: true", "runAsUser: 10001", "fsGroup: 10001")
CONTAINER = ("allowPrivilegeEscalation: false", "capabilities: {drop: [ALL]}")
OF_THE_CLUSTER = ("automountServiceAccountToken: false", "enableServiceLinks: false")


def service_settings() -> dict[str, str]:
    """Those of [Service]; each is set once."""
    found = re.findall(r"^(\w+)=(.*)$", UNIT.partition("[Service]")[2].partition("\n[")[0], re.M)
    assert len(dict(found)) == len(found)
    return dict(found)


def security_contexts() -> list[str]:
    """The text of each in the manifest, without comments: the lines that are indented more than its name."""
    text = re.sub(r" +#.*", "", MANIFEST)
    found = re.finditer(r"^( *)securityContext:(.*\n(?:\1 +\S.*\n)*)", text, re.M)
    return [context[2] for context in found]


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


def test_a_pod_runs_as_the_user_of_the_image_without_rights() -> None:
    of_pod, of_container = security_contexts()
    assert all(setting in of_pod for setting in POD)
    assert all(setting in of_container for setting in CONTAINER)
    assert all(re.search(rf"^ +{setting}( |$)", MANIFEST, re.M) for setting in OF_THE_CLUSTER)
    assert not re.search(r"privileged: true|host(Network|PID|IPC|Path)|seccompProfile:", re.sub(" #.*", "", MANIFEST))


def test_each_image_ends_as_the_user_that_is_not_root() -> None:
    assert re.search(r"^RUN useradd .*--uid 10001 .*elasticflow$", DOCKERFILE, re.M)
    stages = re.split(r"^FROM .* AS (\w+)$", DOCKERFILE, flags=re.M)
    bodies = dict(zip(stages[1::2], stages[2::2], strict=True))
    for target in ("control", "executor"):
        assert re.findall(r"^USER (\w+)$", bodies[target], re.M) == ["elasticflow"], target


def test_the_page_names_what_the_files_set() -> None:
    assert documented("eflow-node.service") == {f"{name}={value}" for name, value in UNIT_SETTINGS.items()}
    assert documented("nodes.yaml") == {*POD, *CONTAINER, *OF_THE_CLUSTER}


@pytest.mark.parametrize("folder", ["how-to", "adr"])
def test_other_pages_delegate_what_the_unit_delegates(folder: str) -> None:
    pages = (file.read_text() for file in (ROOT / "docs" / folder).glob("*.md"))
    named = [value for page in pages for value in re.findall(r"Delegate=([^`\n]*)`", page)]
    assert set(named) == {UNIT_SETTINGS["Delegate"]}
