"""The schemas of Kubernetes' versions accept what the chart renders with each example."""

import re
from pathlib import Path
from typing import Any

import pytest

from tests.helm.chart import CHART, EXAMPLES, Chart

kubernetes = pytest.importorskip(
    "kubernetes_validate.utils", reason="the schemas of Kubernetes need the extra `helm`: `make helm-test`"
)
OF_OPERATORS = {"PodMonitor"}  # no part of Kubernetes


def versions() -> list[str]:
    """From the lowest that the chart admits to the newest that the schemas know."""
    lowest = re.search(r'kubeVersion: ">=1\.(\d+)', (CHART / "Chart.yaml").read_text())
    assert lowest is not None
    known = [int(version.split(".")[1]) for version in kubernetes.all_versions() if version.startswith("1.")]
    return [f"1.{minor}" for minor in sorted(set(known)) if minor >= int(lowest[1])]


def refusals(objects: list[dict[str, Any]], version: str) -> list[str]:
    """What the schemas of this version say against these objects."""
    found: list[str] = []
    for each in objects:
        try:
            kubernetes.validate(each, version, strict=True)
        except kubernetes.ValidationError as error:
            found.append(f"{each['kind']} {each['metadata']['name']}: {error.message}")
    return found


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.stem)
def test_each_version_of_kubernetes_accepts_what_is_rendered(chart: Chart, example: Path) -> None:
    objects = chart.objects("--values", str(example))
    known = [each for each in objects if each["kind"] not in OF_OPERATORS]
    assert len(versions()) >= 3, "those that are maintained"
    assert {version: refusals(known, version) for version in versions()} == {version: [] for version in versions()}


def test_the_schemas_refuse_what_is_wrong(chart: Chart) -> None:
    objects = chart.objects("--values", str(EXAMPLES[0]))
    deployment = next(each for each in objects if each["kind"] == "Deployment")
    deployment["spec"]["template"]["spec"]["automountServiceAccountTokens"] = False
    assert all("automountServiceAccountTokens" in str(refusals([deployment], version)) for version in versions())
