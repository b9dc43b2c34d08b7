"""The Helm chart fits the code, the other deployments and its pages. `make helm-test` has the tests that need helm."""

import importlib.util
import json
import re
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
import yaml

from elasticflow.client.operator_decisions import read_config
from elasticflow.shared.runtime.process.variables import VARIABLES
from tests.helm.chart import CHART, EXAMPLES, PLAIN, ROOT, digest, pods

VALUES = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA = json.loads((CHART / "values.schema.json").read_text())
TEMPLATES = "".join(file.read_text() for file in sorted((CHART / "templates").iterdir()))
COMPOSE = (ROOT / "deploy/compose.yaml").read_text()
PAGE = (ROOT / "docs/how-to/deploy-with-helm.md").read_text()
SERVICES = {"admission", "allocator", "placement", "monitor"}
POOL = list(yaml.safe_load_all((ROOT / "deploy/kubernetes/pool.yaml").read_text()))


def of_schema(part: dict[str, Any]) -> dict[str, Any]:
    """A part of the schema, looked up if it is a reference."""
    name = part.get("$ref", "").rpartition("/")[2]
    return SCHEMA["definitions"][name] if name else part


def unknown(values: dict[str, Any], schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Values that the schema does not name, where it names all."""
    for name, value in values.items():
        known = schema.get("properties", {})
        if name not in known:
            if schema.get("additionalProperties") is False:
                yield f"{path}{name}"
        elif isinstance(value, dict):
            yield from unknown(value, of_schema(known[name]), f"{path}{name}.")


def names_of(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """Each value that the schema names."""
    for name, part in schema.get("properties", {}).items():
        yield f"{path}{name}"
        yield from names_of(of_schema(part), f"{path}{name}.")


def has(values: dict[str, Any], path: str) -> bool:
    first, _, rest = path.partition(".")
    return first in values and (not rest or has(values[first], rest))


def test_each_variable_of_the_chart_is_a_setting() -> None:
    files = [*EXAMPLES, CHART / "values.yaml"]
    text = TEMPLATES + "".join(file.read_text() for file in files) + PAGE
    assert set(re.findall(r"\bEF_[A-Z_]+\b", text)) <= set(VARIABLES)


def test_the_schema_names_the_values_and_no_others() -> None:
    assert list(unknown(VALUES, SCHEMA)) == []
    assert [path for path in names_of(SCHEMA) if not has(VALUES, path)] == []
    assert SCHEMA["additionalProperties"] is False


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_the_examples_use_values_that_exist_and_the_page_names_them(example: Any) -> None:
    values = yaml.safe_load(example.read_text())
    assert list(unknown(values, SCHEMA)) == []
    for group in values.get("nodeGroups", {}).values():
        assert set(group or {}) <= set(VALUES["nodes"])
    assert f"`{example.name}`" in PAGE


def test_the_schema_and_the_test_of_it_find_a_wrong_name() -> None:
    assert list(unknown({"nodes": {"gpu": 4}, "tokens": ""}, SCHEMA)) == ["nodes.gpu", "tokens"]


def test_the_services_are_those_of_compose_with_their_commands() -> None:
    assert set(VALUES["services"]["replicas"]) == SERVICES
    for service in SERVICES:
        assert importlib.util.find_spec(f"elasticflow.services.{service}.__main__")
        (command,) = re.findall(rf"command: (\[python, .*elasticflow\.services\.{service}\])", COMPOSE)
        (pod,) = [pod for name, pod in pods(POOL).items() if name.endswith(service)]
        assert pod["containers"][0]["command"] == yaml.safe_load(command)


def test_the_configuration_does_what_that_of_compose_does() -> None:
    (script,) = re.findall(r"command: \[sh, -c, '(eflow keys workers .*)'\]", COMPOSE)
    (pod,) = [pod for name, pod in pods(POOL).items() if "configuration" in name]
    words = [
        re.findall(r"[\w$\"/-]+", text) for text in (script.replace("$$", "$"), pod["containers"][0]["command"][2])
    ]
    assert [word for word in words[0] if word != "&&"] == words[1]


def test_the_images_and_the_version_are_those_of_the_project() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version)
    targets = re.findall(r"^FROM python AS (\w+)$", (ROOT / "deploy/Dockerfile").read_text(), re.M)
    images = {name: image["repository"] for name, image in VALUES["images"].items()}
    assert images == {"services": "elasticflow/control", "nodes": "elasticflow/executor"}
    assert {image.partition("/")[2] for image in images.values()} <= set(targets)
    assert all(
        f"--target {image.partition('/')[2]}" in PAGE and f"{image}:{version}" in PAGE for image in images.values()
    )


def test_nats_gets_what_the_configuration_files_have() -> None:
    files = (ROOT / "deploy/nats/common.conf").read_text()
    config = VALUES["nats"]["config"]
    for name, value in (*config["jetstream"]["merge"].items(), ("max_payload", config["merge"]["max_payload"])):
        assert re.search(rf"^ *{name}: {value} ", files, re.M), name
    assert config["merge"]["authorization"]["token"] == "<< $NATS_TOKEN >>"
    assert (
        f"token: {config['merge']['authorization']['token'][3:-3]}"
        in (ROOT / "deploy/nats/access/users.conf").read_text()
    )
    assert VALUES["nats"]["container"]["env"]["NATS_TOKEN"]["valueFrom"]["secretKeyRef"]["key"] == "NATS_TOKEN"


def test_the_configuration_of_a_pool_may_be_a_map(tmp_path: Any) -> None:
    """As the chart writes poolConfig."""
    file = tmp_path / "pool.json"
    file.write_text(json.dumps({"leave_s": 60}))
    assert read_config(file).leave_s == 60.0


def test_alerts_find_the_services_by_the_label_of_their_pods() -> None:
    alerts = (ROOT / "deploy/prometheus/alerts.yml").read_text()
    named = set(re.findall(r'up\{service="(\w+)"\}', alerts))
    components = {
        each["spec"]["template"]["metadata"]["labels"]["app.kubernetes.io/component"]
        for each in POOL
        if "template" in each.get("spec", {})
    }
    assert components - {"configuration"} == named
    monitor = (CHART / "templates/podmonitor.yaml").read_text()
    assert "__meta_kubernetes_pod_label_app_kubernetes_io_component" in monitor
    assert "targetLabel: service" in monitor


def test_no_pod_is_restarted_because_nats_is_away() -> None:
    """/healthz fails then, and workers train on."""
    for name, pod in pods(POOL).items():
        if "configuration" not in name:
            container = pod["containers"][0]
            assert container["livenessProbe"]["httpGet"]["path"] == "/metrics", name
            assert container["readinessProbe"]["httpGet"]["path"] == "/healthz", name


def test_the_plain_manifests_are_of_this_chart() -> None:
    """Run `python -m tests.helm` with a helm after a change of the chart; `make helm-test` compares what it renders."""
    for name in PLAIN:
        assert f"# Digest of the chart: {digest()}\n" in (ROOT / "deploy/kubernetes" / name).read_text()
