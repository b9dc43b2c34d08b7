"""What an elastic job refuses of a training library, before the first step."""

from dataclasses import dataclass
from typing import ClassVar

from elasticflow.shared.errors import Stop


@dataclass(eq=False)
class Unsupported(Stop):
    """A setting that an elastic job cannot keep. instead: what to write."""

    setting: str
    reason: str
    instead: str

    MESSAGE: ClassVar[str] = "{setting} is not supported in an elastic job: {reason}; {instead}"


@dataclass(frozen=True, slots=True)
class Rule:
    """A setting that is refused if `is_set`."""

    is_set: bool
    setting: str
    reason: str
    instead: str


ONE_PROCESS = "the job decides how many GPUs it has, and starts one process for each"
PARTS = "a global batch already consists of parts whose gradients are summed"
SCALE = "its scale would differ between workers"


def refuse(*rules: Rule) -> None:
    """Raises Unsupported for the first rule that applies."""
    for rule in rules:
        if rule.is_set:
            raise Unsupported(rule.setting, rule.reason, rule.instead)
