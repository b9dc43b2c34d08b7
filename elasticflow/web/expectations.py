"""What is expected of a job as long as nothing new is reported: values that a browser reads at any later time. Pure.

The page draws itself anew each second without asking the server. So the server says now what its functions will say
then: each value holds after one time, up to the next.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from elasticflow.sdk.times import duration_in_words
from elasticflow.shared.state.expected_finish import expected_finish_s, is_silent, margin_s, silent_from_s, speed_now
from elasticflow.shared.state.job import Job
from elasticflow.shared.state.promise import promise_of


def expectations(job: Job) -> list[dict[str, Any]]:
    """In the order of time. finish_s: of a live job, never before now. silent_since_s: of its last report, if it is
    silent."""
    silent_at_s = silent_from_s(job) if job.live else None
    deadline_s = job.deadline_s if job.live else None
    return [
        {
            "after_s": after_s,
            "promise": promise_of(job, now_s).value,
            "finish_s": expected_finish_s(job, now_s),
            "has_margin": margin_s(job, now_s) is not None,
            "iterations_per_s": speed_now(job, now_s) if job.live else job.iterations_per_s,
            "silent_since_s": job.progressed_at_s if job.live and is_silent(job, now_s) else None,
        }
        for after_s in sorted({0.0, *(at_s for at_s in (silent_at_s, deadline_s) if at_s is not None)})
        for now_s in (math.nextafter(after_s, math.inf),)
    ]


def expected_at(row: Mapping[str, Any], now_s: float) -> Mapping[str, Any]:
    """The expectations of a row that hold at this time, as words.js finds them."""
    found: Sequence[Mapping[str, Any]] = row["expectations"]
    return next(each for each in reversed(found) if each["after_s"] < now_s or each is found[0])


def finish_at(row: Mapping[str, Any], now_s: float) -> float | None:
    finish_s: float | None = expected_at(row, now_s)["finish_s"]
    return finish_s if finish_s is None or not row["live"] else max(now_s, finish_s)


def margin_at(row: Mapping[str, Any], now_s: float) -> float | None:
    finish_s = finish_at(row, now_s)
    return row["deadline_s"] - finish_s if expected_at(row, now_s)["has_margin"] and finish_s is not None else None


def sentence_at(row: Mapping[str, Any], now_s: float) -> str:
    """As "running on 4 GPUs, iteration 120 of 300; the expected finish is 51.0s before its deadline"."""
    margin_s, silent_since_s = margin_at(row, now_s), expected_at(row, now_s)["silent_since_s"]
    words = [row["sentence"]]
    if silent_since_s is not None:
        words.append(f"no progress reported for {duration_in_words(now_s - silent_since_s)}")
    if margin_s is not None:
        finish = "the expected finish is" if row["live"] else "it ended"
        words.append(
            f"{finish} {duration_in_words(abs(margin_s))} {'before' if margin_s >= 0 else 'after'} its deadline"
        )
    return "; ".join(filter(None, (*words, row["explanation"])))
