"""Old messages in today's words: from the fields of one version to those of the next. Called by `codec` alone."""

from collections.abc import Callable
from typing import Any

Fields = dict[str, Any]  # a payload


def _job_admitted_1(payload: Fields) -> Fields:
    """Schedules were lists of maps."""
    share = _flat(payload["minimum_satisfactory_share"])
    return payload | {
        "minimum_satisfactory_share": share,
        "replanned": _flat_by_job(payload.get("replanned", {})),
    }


def _allocation_decided_1(payload: Fields) -> Fields:
    """Schedules were lists of maps."""
    return payload | {"planned": _flat_by_job(payload.get("planned", {}))}


def _flat_by_job(schedules: dict[str, list[Fields]]) -> dict[str, list[float]]:
    return {job_id: _flat(steps) for job_id, steps in schedules.items()}


def _flat(steps: list[Fields]) -> list[float]:
    return [number for step in steps for number in (step["start_s"], step["end_s"], step["num_gpus"])]


# (name, version) -> the fields of version + 1. Applied one after another up to the current version.
UPCASTERS: dict[tuple[str, int], Callable[[Fields], Fields]] = {
    ("JobAdmitted", 1): _job_admitted_1,
    ("AllocationDecided", 1): _allocation_decided_1,
}
