"""No deployment starts with a secret that everyone can read in its files."""

import re
from pathlib import Path

import yaml

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_compose_starts_nothing_without_a_token() -> None:
    used = re.findall(r"\$\{NATS_TOKEN(.*?)\}", (DEPLOY / "compose.yaml").read_text())
    assert len(used) == 5
    assert {rest[:2] for rest in used} == {":?"}


def test_no_url_has_a_secret_of_its_own() -> None:
    files = [file for file in DEPLOY.rglob("*") if file.suffix in (".yaml", ".conf", ".env", ".yml", ".service")]
    found = [secret for file in files for secret in re.findall(r"nats://([^@\"]+)@", file.read_text())]
    known = {"$", "route:$", "TOKEN", "$(NATS_TOKEN)"}  # the last: as Kubernetes refers to a secret
    assert {re.sub(r"\$\{NATS_TOKEN:\?[^}]*\}", "$", secret) for secret in found} == known


def test_the_helm_chart_has_no_secret_and_takes_each_from_one() -> None:
    values = yaml.safe_load((DEPLOY / "helm/values.yaml").read_text())
    assert values["token"] == ""
    for file in (DEPLOY / "kubernetes").glob("*.yaml"):
        objects = list(yaml.safe_load_all(file.read_text()))
        assert "Secret" not in {each["kind"] for each in objects}
        pods = [each["spec"]["template"]["spec"] for each in objects if "template" in each.get("spec", {})]
        variables = [variable for pod in pods for variable in pod["containers"][0]["env"]]
        tokens = [variable for variable in variables if variable["name"] == "NATS_TOKEN"]
        assert len(tokens) == len(pods)
        assert all(token["valueFrom"]["secretKeyRef"]["key"] == "NATS_TOKEN" for token in tokens)
    examples = [yaml.safe_load(file.read_text()) for file in (DEPLOY / "helm/examples").glob("*.yaml")]
    assert not [example for example in examples if "token" in example]
