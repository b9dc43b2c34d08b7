"""No deployment starts with a secret that everyone can read in its files."""

import re
from pathlib import Path

DEPLOY = Path(__file__).parents[3] / "deploy"


def test_compose_starts_nothing_without_a_token() -> None:
    used = re.findall(r"\$\{NATS_TOKEN(.*?)\}", (DEPLOY / "compose.yaml").read_text())
    assert len(used) == 5
    assert {rest[:2] for rest in used} == {":?"}


def test_no_url_has_a_secret_of_its_own() -> None:
    files = [file for file in DEPLOY.rglob("*") if file.suffix in (".yaml", ".conf", ".env", ".yml", ".service")]
    found = [secret for file in files for secret in re.findall(r"nats://([^@\"]+)@", file.read_text())]
    assert {re.sub(r"\$\{NATS_TOKEN:\?[^}]*\}", "$", secret) for secret in found} == {"$", "route:$", "TOKEN"}
