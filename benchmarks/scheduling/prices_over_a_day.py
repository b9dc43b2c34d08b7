"""`python -m benchmarks.scheduling.prices_over_a_day PICTURE`: prices of GPU time by deadline, and what they rejected.

The second day of the diurnal workload on an eighth of its GPUs, under `selective`.
"""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from matplotlib.colors import LogNorm

from benchmarks.scheduling.workloads import GENERATED, cluster_of, tables
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, PlanEvent
from elasticflow.shared.scheduling.admission.admission_pricing import AdmissionPricing
from elasticflow.shared.scheduling.admission.planned_pool import planned_pool
from elasticflow.shared.scheduling.jobs.job_table import SchedulableJob
from elasticflow.shared.scheduling.jobs.scaling_curve import ScalingCurve
from elasticflow.shared.scheduling.planning_cache import PlanningCache
from elasticflow.shared.state.pool import PoolState
from elasticflow.simulator.report.figures import HOUR_S, panels, png
from elasticflow.simulator.trace.simulated_run import SimulatedRun
from elasticflow.simulator.workload.generator import generate
from elasticflow.simulator.workload.workload import Workload, bundled_throughputs

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import NDArray

WORKLOAD, NUM_GPUS = "generated diurnal", 8
FROM_H, UNTIL_H = 24, 48
WINDOWS_S = [HOUR_S * 1.25**step for step in range(-6, 16)]
LEAST_PRICE = 0.05  # promises for a GPU-hour
LOOK = {  # by answer: label, marker, colour
    "admitted": ("admitted", "o", "tab:green"),
    "price": ("rejected by price", "x", "tab:red"),
    "deadline": ("rejected: no space before the deadline", "v", "tab:grey"),
}


@dataclass(slots=True)
class PricesAndAnswers:
    """Observes a simulation. answers: hours, GPU-hours and answer of each job; prices: by window, with the hour."""

    began_s: float
    answers: list[tuple[float, float, str]] = field(default_factory=list)
    prices: list[tuple[float, list[float]]] = field(default_factory=list)
    cache: PlanningCache = field(default_factory=PlanningCache)

    def decided(self, before: PoolState, events: tuple[PlanEvent, ...], now_s: float) -> None:
        """Note what each job was answered, and the prices before."""
        hour = (now_s - self.began_s) / HOUR_S
        if not FROM_H <= hour <= UNTIL_H:
            return
        for event in events:
            if isinstance(event, JobAdmitted):
                self.answers.append((hour, event.least_gpu_seconds / HOUR_S, "admitted"))
            elif isinstance(event, JobRejected) and event.reason in LOOK and event.least_gpu_seconds:
                self.answers.append((hour, event.least_gpu_seconds / HOUR_S, event.reason))
            else:
                continue
            pricing = AdmissionPricing(before.demand, (), now_s, planned_pool(before, now_s, self.cache).plan)
            self.prices.append((hour, [_price(pricing, now_s + window_s) for window_s in WINDOWS_S]))


def _price(pricing: AdmissionPricing, deadline_s: float) -> float:
    """How many expected promises a job of one GPU-hour displaces."""
    levels = tuple(2**power for power in range(NUM_GPUS.bit_length()))
    curve = ScalingCurve(levels, tuple(map(float, levels)))
    job = SchedulableJob(job_id="probe", curve=curve, remaining_iterations=HOUR_S, deadline_s=deadline_s)
    return pricing.displaced_promises(job)


def observed(workload: Workload) -> PricesAndAnswers:
    """What was seen in a simulation of this workload."""
    seen = PricesAndAnswers(workload.jobs[0].submitted_at_s)
    SimulatedRun(workload=workload, cluster=cluster_of(NUM_GPUS)).simulation(seen).run()
    return seen


def draw(seen: PricesAndAnswers, picture: Path) -> None:
    """Prices above, jobs below, on one axis of time."""
    figure, (above, below) = panels(2)
    _draw_prices(above, seen)
    for answer, (label, marker, colour) in LOOK.items():
        jobs = [(hour, gpu_hours) for hour, gpu_hours, what in seen.answers if what == answer]
        hours, sizes = [hour for hour, _ in jobs], [gpu_hours for _, gpu_hours in jobs]
        below.scatter(hours, sizes, marker=marker, color=colour, s=24, label=label if jobs else None)
    below.set_yscale("log")
    below.set_ylabel("GPU-hours of the job")
    below.set_xlabel("hour of the day")
    below.legend(loc="lower right", fontsize=8)
    for axes in (above, below):
        axes.set_xlim(FROM_H, UNTIL_H)
        axes.set_xticks(range(FROM_H, UNTIL_H + 1, 3), [str(hour % 24) for hour in range(FROM_H, UNTIL_H + 1, 3)])
    picture.write_bytes(png(figure))


def _draw_prices(axes: "Axes", seen: PricesAndAnswers) -> None:
    by_hour = dict(seen.prices)
    hours_N: NDArray[np.float64] = np.array([*by_hour, UNTIL_H])
    prices_NW = np.array(list(by_hour.values()))
    edges_W = [window_s / HOUR_S for window_s in (*WINDOWS_S, WINDOWS_S[-1] * 1.25)]
    prices = np.where(prices_NW.T > LEAST_PRICE, prices_NW.T, math.nan)
    mesh = axes.pcolormesh(hours_N, edges_W, prices, norm=LogNorm(LEAST_PRICE, prices_NW.max()), cmap="YlOrRd")
    axes.set_yscale("log")
    axes.set_ylabel("hours to the deadline")
    axes.figure.colorbar(mesh, ax=axes, label="promises that a GPU-hour displaces")


def main(picture: Annotated[Path, typer.Argument(help="The file to write, for example prices.png.")]) -> None:
    """Draw the prices of a day and what they rejected."""
    recipe, seed = GENERATED[WORKLOAD]
    draw(observed(generate(recipe, tables(bundled_throughputs()), seed)), picture)


if __name__ == "__main__":
    typer.run(main)
