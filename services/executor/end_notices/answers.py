"""From the answer of what announces the end of this machine to that end, in seconds since 1970. Pure.

None: the answer announces no end. Each function raises ValueError for an answer that it does not understand.
"""

import json
import math
import re
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, cast

from elasticflow.shared.messages.limits import MAX_TIME_S
from elasticflow.times import parse_deadline, timestamp_of

# A rebalance recommendation names no end: the machine may end soon, at its notice of two minutes, or much later.
AWS_REBALANCE_S = 600.0
# Compute Engine stops a preempted machine 30 s after it has said so, and for maintenance one with GPUs after an hour.
GCP_PREEMPTED_S, GCP_MAINTENANCE_S, GCP_MAINTENANCE_WITH_GPUS_S = 30.0, 60.0, 3600.0
_GCP_STAYS = {"NONE", "MIGRATE_ON_HOST_MAINTENANCE"}
# A machine that is frozen goes on some seconds later with its memory.
_AZURE_ENDS = {"Reboot", "Redeploy", "Preempt", "Terminate"}
_DIGITS_OF_NOW, _MAX_DIGITS = 10, 30  # seconds since 1970 have ten from the year 2001 on
_SLURM_END = re.compile(r"(?:^|\s)EndTime=(\S*)")
_SLURM_UNKNOWN = {"", "N/A", "NONE", "Unknown"}


def aws_end(instance_action: str | None, rebalance: str | None) -> float | None:
    """Of an EC2 instance. None: the metadata service has no such item.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/rebalance-recommendations.html
    """
    ends_s = list[float]()
    if instance_action is not None:  # {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
        ends_s.append(_iso_s(_text_in(_object(instance_action), "time")))
    if rebalance is not None:  # {"noticeTime": "2020-10-27T08:22:00Z"}
        ends_s.append(_iso_s(_text_in(_object(rebalance), "noticeTime")) + AWS_REBALANCE_S)
    return min(ends_s, default=None)


def gcp_end(preempted: str, maintenance_event: str, since_s: float, *, has_gpus: bool) -> float | None:
    """Of an instance of Compute Engine. since_s: when these answers were first read; they name no time themselves.

    https://cloud.google.com/compute/docs/instances/create-use-preemptible
    https://cloud.google.com/compute/docs/gpus/gpu-host-maintenance
    """
    if preempted not in ("TRUE", "FALSE"):
        raise ValueError(f"{preempted!r:.60} is neither TRUE nor FALSE")
    if preempted == "TRUE":
        return since_s + GCP_PREEMPTED_S
    if maintenance_event in _GCP_STAYS:
        return None
    if maintenance_event != "TERMINATE_ON_HOST_MAINTENANCE":
        raise ValueError(f"{maintenance_event!r:.60} is no maintenance event")
    return since_s + (GCP_MAINTENANCE_WITH_GPUS_S if has_gpus else GCP_MAINTENANCE_S)


def azure_end(scheduled_events: str, machine: str, since_s: float) -> float | None:
    """Of this virtual machine: all of a scale set or availability set see each other's events.

    since_s: when this answer was first read; an event that has begun names no time.
    https://learn.microsoft.com/en-us/azure/virtual-machines/linux/scheduled-events
    """
    ends_s = list[float]()
    for each in _list_in(_object(scheduled_events), "Events"):
        event = _as_object(each)
        if event.get("EventType") not in _AZURE_ENDS or machine not in _list_in(event, "Resources"):
            continue
        not_before = event.get("NotBefore")
        ends_s.append(_http_date_s(str(not_before)) if not_before else since_s)
    return min(ends_s, default=None)


def slurm_end(job: str) -> float | None:
    """Of an allocation, from `scontrol show job --oneliner`.

    https://slurm.schedmd.com/scontrol.html
    """
    found = _SLURM_END.search(job)
    if found is None:
        raise ValueError(f"{job!r:.60} has no EndTime")
    return None if found[1] in _SLURM_UNKNOWN else _iso_s(found[1])


def file_end(text: str, written_s: float) -> float | None:
    """A time, or a duration since the file was written. An empty file and the word never announce no end."""
    word = text.strip()
    if word in ("", "never"):
        return None
    if word.isascii() and word.isdigit():
        return _epoch_s(word)
    end = parse_deadline(word)
    return _bounded(written_s + end.within if end.within is not None else timestamp_of(end.deadline or math.inf))


def _object(text: str) -> dict[str, Any]:
    try:
        return _as_object(json.loads(text))
    except RecursionError:
        raise ValueError(f"{text!r:.60} is nested too deeply") from None


def _as_object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{value!r:.60} is no object")
    return cast(dict[str, Any], value)


def _text_in(fields: dict[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise ValueError(f"{name}: it is no text")
    return value


def _list_in(fields: dict[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name}: it is no list")
    return cast(list[Any], value)


def _iso_s(text: str) -> float:
    """Of an ISO time, local unless it names a zone; or such a number itself."""
    return _epoch_s(text) if text.isascii() and text.isdigit() else timestamp_of(datetime.fromisoformat(text))


def _epoch_s(digits: str) -> float:
    """A number that is half written, or meant as a duration, must not end the machine."""
    if len(digits) < _DIGITS_OF_NOW:
        raise ValueError(f"{digits} is no time since 1970; write a duration with its unit, such as {digits}s")
    return _bounded(float(digits[:_MAX_DIGITS]))


def _http_date_s(text: str) -> float:
    """Of a time such as "Mon, 19 Sep 2016 18:29:47 GMT"; some versions of the interface write an ISO time."""
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        moment = datetime.fromisoformat(text)
    return timestamp_of(moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC))


def _bounded(at_s: float) -> float:
    if not 0.0 < at_s <= MAX_TIME_S:
        raise ValueError(f"{at_s:.0f} is thousands of years away")
    return at_s
