"""helm accepts the chart with each example, and what it renders follows from the values."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helm.chart import CHART, EXAMPLES, PLAIN, ROOT, Chart, plain_text, pods

every_example = pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)


def variables(pod: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in pod["containers"][0]["env"]}


@every_example
def test_helm_finds_no_fault(chart: Chart, example: Path) -> None:
    done = chart.run("lint", "--strict", "--values", str(example))
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", PLAIN)
def test_the_plain_manifests_are_what_the_chart_renders(chart: Chart, name: str) -> None:
    kept = (ROOT / "deploy/kubernetes" / name).read_text()
    assert list(yaml.safe_load_all(kept)) == list(yaml.safe_load_all(plain_text(chart, name))), "python -m tests.helm"


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ("nodes.gpu=4", "gpu"),
        ("token=1234567890abcdefgh", "token"),
        ("streamReplicas=2", "streamReplicas"),
        ("natsServers[0]=nats://secret@host:4222", "natsServers"),
        ("nodeGroups.A_100.replicas=1", "A_100"),
        ("nats.enabled=false", "set natsServers"),
        ("keys.enabled=true", "need nats.enabled=false"),
    ],
)
def test_wrong_values_are_refused_by_name(chart: Chart, values: str, problem: str) -> None:
    done = chart.run("template", "--set", values)
    assert done.returncode != 0
    assert problem in done.stderr


def test_a_token_is_in_its_secret_and_nowhere_else(chart: Chart) -> None:
    token = "tokenOfThisTest0123"
    objects = chart.objects("--set", f"token={token}")
    (secret,) = [each for each in objects if each["kind"] == "Secret"]
    assert secret["stringData"] == {"NATS_TOKEN": token}
    assert token not in yaml.safe_dump([each for each in objects if each["kind"] not in ("Secret", "ConfigMap")])
    assert not [each for each in chart.objects() if each["kind"] == "Secret"]


def test_another_token_makes_no_new_configuration_and_another_pool_does(chart: Chart) -> None:
    def name_with(*values: str) -> str:
        return next(each["metadata"]["name"] for each in chart.objects(*values) if each["kind"] == "Job")

    assert name_with("--set", "token=tokenOfThisTest0123") == name_with()
    assert name_with("--set", "pool=other") != name_with()
    assert name_with("--set", "poolConfig.leave_s=60") != name_with()


def test_numbers_of_variables_are_not_rounded(chart: Chart, tmp_path: Path) -> None:
    values = tmp_path / "values.yaml"
    values.write_text("nodes: {env: {EF_JOB_MEMORY_BYTES: 68719476736, NCCL_IB_DISABLE: 1}}")
    objects = chart.objects("--values", str(values))
    found = variables(pods(objects)["elasticflow-node"])
    assert (found["EF_JOB_MEMORY_BYTES"], found["NCCL_IB_DISABLE"]) == ("68719476736", "1")


def test_each_group_is_a_set_with_what_it_changes(chart: Chart) -> None:
    objects = chart.objects("--values", str(CHART / "examples/gpu-types.yaml"))
    sets = {each["metadata"]["name"]: each["spec"] for each in objects if each["kind"] == "StatefulSet"}
    assert {name: spec["replicas"] for name, spec in sets.items()} == {"elasticflow-h100": 4, "elasticflow-a100": 2}
    gpus = {
        name: spec["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
        for name, spec in sets.items()
    }
    assert gpus == {"elasticflow-h100": 8, "elasticflow-a100": 4}
    selectors = {name: spec["selector"]["matchLabels"]["elasticflow/group"] for name, spec in sets.items()}
    assert selectors == {"elasticflow-h100": "h100", "elasticflow-a100": "a100"}


def test_with_keys_no_process_knows_a_token_and_each_has_its_own_key(chart: Chart) -> None:
    objects = chart.objects("--values", str(CHART / "examples/keys.yaml"))
    of_pods = pods(objects)
    assert all("NATS_TOKEN" not in variables(pod) and "@" not in variables(pod)["NATS_URL"] for pod in of_pods.values())
    keys = {name.rpartition("-")[2]: variables(pod)["EF_NATS_CREDS"] for name, pod in of_pods.items()}
    assert keys.pop("node") == "/run/elasticflow/node-$(EF_NODE_ID).seed"
    assert keys.pop("monitor") == "/run/elasticflow/service-services.seed"
    assert "/run/elasticflow/operator-operator.seed" in keys.values()
    for pod in of_pods.values():  # the folder with all keys is mounted where they are copied, and not where jobs run
        assert "keys" not in {mount["name"] for mount in pod["containers"][0]["volumeMounts"]}


def test_kueue_admits_what_its_example_asks_for(chart: Chart) -> None:
    objects = chart.objects("--values", str(CHART / "examples/kueue.yaml"))
    sets = [each for each in objects if each["kind"] == "StatefulSet"]
    queues = {each["kind"]: each for each in yaml.safe_load_all((ROOT / "deploy/kubernetes/kueue.yaml").read_text())}
    names = {each["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] for each in sets}
    assert names == {queues["LocalQueue"]["metadata"]["name"]}
    (group,) = queues["ClusterQueue"]["spec"]["resourceGroups"]
    quotas = {each["name"]: each["nominalQuota"] for each in group["flavors"][0]["resources"]}
    resources = [each["spec"]["template"]["spec"]["containers"][0]["resources"] for each in sets]
    asked = {name for each in resources for kind in ("requests", "limits") for name in each[kind]}
    assert asked == set(group["coveredResources"]) == set(quotas)
    num_pods = sum(each["spec"]["replicas"] for each in sets)
    assert num_pods * resources[0]["limits"]["nvidia.com/gpu"] <= quotas["nvidia.com/gpu"]
    assert num_pods * resources[0]["requests"]["cpu"] <= quotas["cpu"]
