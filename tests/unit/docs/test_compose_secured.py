"""With deploy/secured.yaml no NATS server keeps the example password of compose.yaml."""

import re
from pathlib import Path

DEPLOY = Path(__file__).parents[3] / "deploy"
EXAMPLE = "development-only"


def environment(file: str, section: str) -> dict[str, str]:
    """The variables of NATS servers in a section at the top of a file."""
    found = re.search(rf"^{section}: .*\n((?:  .*\n)+)", (DEPLOY / file).read_text(), re.MULTILINE)
    assert found, f"{file} has {section}"
    return dict(re.findall(r"^ +(NATS_\w+): (.+)$", found[1], re.MULTILINE))


def test_each_example_password_of_a_server_is_replaced_by_a_required_one() -> None:
    of_all = environment("compose.yaml", "x-nats-environment")
    examples = {name for name, value in of_all.items() if EXAMPLE in value}
    assert examples == {"NATS_TOKEN", "NATS_ROUTE_1", "NATS_ROUTE_2", "NATS_ROUTE_3"}
    secured = environment("secured.yaml", "x-nats")
    assert {name for name in examples if "${NATS_ROUTE_PASSWORD:?" in secured.get(name, "")} == examples
    assert EXAMPLE not in (DEPLOY / "secured.yaml").read_text()
