"""What the adapters share: what an elastic job refuses of a training library, and what its trainer holds for users."""

import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from elasticflow.shared.errors import Stop

# --- unsupported --------------------------------------------------------------------------------------
# What an elastic job refuses of a training library, before the first step.


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
SHARDED = "remove it, or run the script without the adapter and with --torchrun, which restarts it at each resize"
SCALE = "its scale would differ between workers"


def refuse(*rules: Rule) -> None:
    """Raises Unsupported for the first rule that applies."""
    for rule in rules:
        if rule.is_set:
            raise Unsupported(rule.setting, rule.reason, rule.instead)


def replace_accumulation(owner: Any, setting: str, global_batch_size: int) -> None:
    """A step has one pass of the library's loop, which must not divide its loss: the job itself divides the batch."""
    if (number := getattr(owner, setting)) > 1:
        logging.getLogger(__name__).warning(
            "%s=%d is replaced by 1: a step has a global batch of --batch %d samples, which the job divides into parts "
            "and micro-batches.",
            setting,
            number,
            global_batch_size,
        )
        setattr(owner, setting, 1)


# --- held state ---------------------------------------------------------------------------------------
# Objects of users that a library's trainer holds, and that are state of its job.


def named_by_class(objects: Iterable[Any]) -> dict[str, Any]:
    """Each by the name of its class; the second one of a class has its number, too."""
    found, numbers = dict[str, Any](), Counter[str]()
    for each in objects:
        name = type(each).__name__
        numbers[name] += 1
        found[name if numbers[name] == 1 else f"{name}{numbers[name]}"] = each
    return found
