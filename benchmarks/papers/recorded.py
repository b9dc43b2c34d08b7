"""Numbers of analogues that other benchmarks have measured: read from the JSON files that they wrote.

A reader gets the part of the file that has its name, and returns numbers by name.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.padding.preempted import OVERHEAD_S, TASK_S
from benchmarks.papers.analogues import Analogue
from elasticflow.shared.errors import BadSettings

RESULTS = Path(__file__).parents[1] / "results"
_GROUPS_BY_MEAN_S = {"2.5": (0, 3), "5": (1, 4), "10": (2, 5)}  # of windows with this mean length that was asked for
_LIKE_H3 = (2, 8)  # fast and slow slots, as VirtualFlow's H3 has V100 and P100


def mixed_slots(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Saved by uneven splits, by the ratio of speeds; the mean error of predictions; and what slots like those of H3
    gain over one type alone, where they were measured.
    """
    mixes = part["mixes"]
    saved = {
        f"saved-{ratio}-to-1": fmean(1.0 - mix["measured_s"] / mix["even_s"] for mix in mixes if mix["ratio"] == ratio)
        for ratio in sorted({mix["ratio"] for mix in mixes})
    }
    error = fmean(abs(mix["predicted_s"] / mix["measured_s"] - 1.0) for mix in mixes)
    like_h3 = [total for total in part["sums"] if (total["num_fast"], total["num_slow"]) == _LIKE_H3]
    gained = {
        f"over-{kind}": max(total["mixed_per_s"] / total[f"{kind}_per_s"] - 1.0 for total in like_h3)
        for kind in (("fast", "slow") if like_h3 else ())
    }
    return {**saved, "prediction-error": error, **gained}


def completion_times(part: Mapping[str, Any]) -> Mapping[str, float]:
    """The part of the mean completion time that mixed types save elastic jobs, by jobs an hour: mean over the seeds."""
    by_rate = part["completion"]["elastic"]
    found = dict[str, float]()
    for mixed, suffix in (("mixed", ""), ("mixed at 0.9", "-at-0.9")):
        saved = {rate: _saved(runs["one type"], runs[mixed]) for rate, runs in by_rate.items()}
        found |= {f"saved-at-{rate}{suffix}": number for rate, number in saved.items()}
        found[f"saved-at-best{suffix}"] = max(saved.values())
    return found


def _saved(before: Sequence[Mapping[str, float]], after: Sequence[Mapping[str, float]]) -> float:
    pairs = zip(before, after, strict=True)
    return fmean(1.0 - other["mean_completion_s"] / one["mean_completion_s"] for one, other in pairs)


def runners(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Medians in seconds: join: from the call to the loaded function; leave: until its process group is reaped."""
    join_s, leave_s = part["start"]["start_ms"]["p50"] / 1e3, part["preemption"]["preempt_ms"]["p50"] / 1e3
    return {"join": join_s, "leave": leave_s, "both": join_s + leave_s}


def useful_shares(part: Mapping[str, Any]) -> Mapping[str, float]:
    """The GPU time paid for a second of tasks, over that of windows that never end; by windows of nearly one length."""
    limit = TASK_S / (TASK_S + OVERHEAD_S)
    groups = part["groups"]
    return {
        f"cost-{length}-s": fmean(limit / groups[number]["useful_share"] for number in numbers)
        for length, numbers in _GROUPS_BY_MEAN_S.items()
    }


def whole_loads(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Seconds of a slot besides the work of each task."""
    return {"besides-a-task": part["task_s"] / part["useful_share"] - part["task_s"]}


def fidelity(part: Mapping[str, Any]) -> Mapping[str, float]:
    """Mean errors of completion times over the live runs that are not void, and of live runs against each other."""
    runs = [run for run in part["runs"] if not run["void"]]
    if not runs:
        return {}
    return {
        "error-own-decisions": fmean(run["simulated"]["mean"] for run in runs),
        "error-recorded-placements": fmean(run["placements"]["mean"] for run in runs),
        "live-against-live": fmean(pair["mean"] for pair in part["live_against_live"]),
    }


READERS: Mapping[str, Callable[[Mapping[str, Any]], Mapping[str, float]]] = {
    "mixed_slots": mixed_slots,
    "completion_times": completion_times,
    "runners": runners,
    "useful_shares": useful_shares,
    "whole_loads": whole_loads,
    "fidelity": fidelity,
}


def recorded_result(analogue: Analogue, folder: Path) -> Mapping[str, Any] | None:
    """The result as of a measured part; None if the file, or the part in it, is missing.

    Raises BadSettings if it is unusable.
    """
    file = folder / analogue.recorded
    if not file.is_file():
        return None
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if analogue.measure not in content:
            return None
        numbers = dict(READERS[analogue.measure](content[analogue.measure]))
    except (ValueError, LookupError, TypeError, ZeroDivisionError) as error:
        raise BadSettings((f"{file}: not as {analogue.written_by} writes it ({error!r})",)) from error
    return {"numbers": numbers, "load_average": content.get("load_average", [])}
