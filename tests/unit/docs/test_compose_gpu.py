"""The container of an executor with GPUs may lock memory, which InfiniBand needs, and its device is documented."""

import re
from pathlib import Path

COMPOSE = Path(__file__).parents[3] / "deploy" / "compose.yaml"


def service(name: str) -> list[str]:
    """The lines of its section."""
    found = re.search(rf"^  {name}:\n((?:    .*\n)+)", COMPOSE.read_text(), re.MULTILINE)
    assert found, f"compose.yaml has the service {name}"
    return [line.strip() for line in found[1].splitlines()]


def test_an_executor_with_gpus_may_lock_all_memory_and_names_the_device_of_infiniband() -> None:
    settings = {line.partition(":")[0]: line.partition(": ")[2] for line in service("executor-gpu")}
    assert settings["ulimits"].startswith("{memlock: -1}")
    assert settings["# devices"].startswith('["/dev/infiniband"]'), "commented, because few nodes have it"


def test_executors_without_gpus_keep_the_usual_limit() -> None:
    assert not [line for line in service("executor") if "memlock" in line or "infiniband" in line]
