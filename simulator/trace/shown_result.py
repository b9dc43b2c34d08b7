"""The numbers of a simulation as a person reads them, a line for each question; `--json` has all by name. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from elasticflow.sdk.times import duration_in_words

Numbers = Mapping[str, Any]
_IDLE = "idle_gpu_hours_"


def result_table(numbers: Numbers) -> Table:
    """Two columns; a question without an answer in this run has no row."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, answer in _rows(numbers):
        table.add_row(name, answer)
    return table


def _rows(n: Numbers) -> Iterator[tuple[str, str]]:
    partial = ", interrupted: the numbers so far" if n["partial"] else ""
    yield "run", f"{n['trace']} on {n['num_gpus']:,} GPUs, policy {n['policy']}, overhead {n['overhead']}{partial}"
    unfinished = f", {n['unfinished']:,} not finished" if n["unfinished"] else ""
    yield "jobs", f"{n['jobs']:,} submitted: {n['admitted']:,} admitted, {n['rejected']:,} rejected{unfinished}"
    ratio = n["deadline_satisfactory_ratio"]
    of_all = "" if ratio is None else f"; {ratio:.1%} of all, with rejected jobs"
    yield "deadlines", f"{n['met']:,} met, {n['late']:,} promised and missed{of_all}"
    if n["soft_met"] or n["soft_late"]:
        yield "soft deadlines", f"{n['soft_met']:,} met, {n['soft_late']:,} missed"
    yield from _bound(n)
    yield from _times(n)
    in_use = "" if n["utilization"] is None else f", {n['utilization']:.1%} of the time held"
    yield "GPUs", f"{n['gpu_hours']:,.1f} GPU-hours{in_use}, cluster efficiency {n['cluster_efficiency']:.1%}"
    yield from _idle(n)
    changes = f"{n['resizes']:,} resizes, {n['migrations']:,} migrations, {n['outages']:,} nodes lost"
    every_s = n["scheduling_interval_s"]
    yield "changes", changes + ("" if every_s is None else f"; GPUs change hands every {duration_in_words(every_s)}")
    if n["certificates_checked"] is not None:
        failed, unproven = n["certificate_failures"], n["unproven"]
        checked = f"{n['certificates_checked']:,} checked, {failed:,} wrong"
        yield "certificates", f"{checked}; {unproven:,} rejections without a proof"
    yield "computed in", f"{n['wall_s']:,.1f} s, {n['peak_rss_mb']:,.0f} MB of memory; --json has every number"


def _bound(n: Numbers) -> Iterator[tuple[str, str]]:
    """What any scheduler could do at most."""
    if n["bound"] is None:
        return
    exact = "" if n["bound_exact"] else " or fewer"
    part = "" if n["fraction_of_bound"] is None else f"; this run met {n['fraction_of_bound']:.1%} of that"
    yield (
        "any scheduler",
        f"meets at most {n['bound']:,.6g}{exact} deadlines, in {n['bound_gpu_hours']:,.1f} GPU-hours{part}",
    )
    yield "each job alone", f"{n['feasible_alone']:,} of them could meet their deadlines on an empty cluster"


def _times(n: Numbers) -> Iterator[tuple[str, str]]:
    yield "makespan", duration_in_words(n["makespan_s"])
    kinds = {
        "a job takes": "jct",
        "a small job": "jct_small",
        "a medium job": "jct_medium",
        "a large job": "jct_large",
        "a job waits": "queueing",
    }
    for name, key in kinds.items():
        if n[f"mean_{key}_s"] is not None:
            mean, median = (duration_in_words(n[f"{kind}_{key}_s"]) for kind in ("mean", "median"))
            yield name, f"{mean} (median {median})"
    if n["mean_jct_best_effort_s"] is not None:
        yield "best effort", duration_in_words(n["mean_jct_best_effort_s"])


def _idle(n: Numbers) -> Iterator[tuple[str, str]]:
    if n.get("idle_gpu_hours") is None:
        return
    causes = [
        f"{hours:,.3g} {name.removeprefix(_IDLE).replace('_', ' ')}"
        for name, hours in n.items()
        if name.startswith(_IDLE) and hours
    ]
    why = f": {', '.join(causes)}" if causes else ""
    yield "idle", f"{n['idle_gpu_hours']:,.3g} GPU-hours{why}"
    if n.get("idle_windows"):
        lengths = [n[f"idle_window_p{part}_s"] for part in (10, 50, 90)]
        words = ", ".join("-" if length_s is None else duration_in_words(length_s) for length_s in lengths)
        yield "idle windows", f"{n['idle_windows']:,}; their percentiles 10, 50 and 90: {words}"
