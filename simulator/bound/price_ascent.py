"""Prices of GPU time and the bound that they prove: the relaxation's Lagrangian dual, for programs of any size.

Let a GPU-second in interval i cost price_I[i]. Each job buys the cheapest GPU-seconds that finish it, if they cost
less than the value of its deadline, 1. Then, by weak duality, *whatever the prices*,

    sum over I of price * capacity  +  sum over J of (1 - cost of the job), where positive

is at least what any schedule meets. `ascend` looks for prices that make it small.
Axes as in `feasible_demand`: J jobs, S steps, I intervals.
"""

from dataclasses import dataclass, replace

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import compiled
from elasticflow.simulator.bound.feasible_demand import Demand, FloatArray, Grid, IntArray

# Of the volume algorithm; chosen once, for all traces.
_FIRST_AIM, _LAST_AIM = 0.05, 1e-6  # how much of the bound a step hopes to take off
_FAILURES_TO_SHORTEN, _FAILURES_TO_REFINE = 8, 40
_NEWEST_SHARE, _LEAST_NEWEST_SHARE = 0.1, 0.005


@dataclass(frozen=True, slots=True)
class Answer:
    """The jobs' answer to prices. met_J: 1 for jobs that buy; gpu_seconds_I: what they buy."""

    price_I: FloatArray
    dual_value: float
    met_J: FloatArray
    gpu_seconds_I: FloatArray

    def mixed(self, newest: "Answer", share: float) -> "Answer":
        """This mean with a share of a newer answer; approaches an optimum of the relaxation."""
        return replace(
            self,
            met_J=self.met_J + share * (newest.met_J - self.met_J),
            gpu_seconds_I=self.gpu_seconds_I + share * (newest.gpu_seconds_I - self.gpu_seconds_I),
        )


def answer(demand: Demand, grid: Grid, num_gpus: int, price_I: FloatArray) -> Answer:
    """The purchases of the jobs at these prices (each >= 0), and the bound that follows."""
    met_J, gpu_seconds_I = np.zeros(demand.num_jobs), np.zeros(len(price_I))
    surplus = _buy(
        price_I, grid.instants_s_B, grid.first_J, grid.last_J, demand.opens_s_J, demand.closes_s_J,
        demand.first_step_J, demand.num_gpus_S, demand.gain_S, met_J, gpu_seconds_I,
    )  # fmt: skip
    return Answer(price_I, float(price_I @ grid.lengths_s_I) * num_gpus + surplus, met_J, gpu_seconds_I)


def ascend(demand: Demand, grid: Grid, num_gpus: int, max_answers: int) -> tuple[Answer, Answer]:
    """The answer to the best prices found, and the mean answer, close to an optimum of the relaxation.

    Source: Barahona and Anbil, "The volume algorithm", Mathematical Programming 87 (2000): steps from the best
    prices along the mean of the past answers' subgradients, which converges where a plain subgradient zigzags.
    """
    lengths_s_I = grid.lengths_s_I
    best = mean = answer(demand, grid, num_gpus, np.zeros(len(lengths_s_I)))
    aim = refined_aim = _FIRST_AIM * max(best.dual_value, 1.0)
    newest_share, failures = _NEWEST_SHARE, 0
    for _ in range(max_answers - 1):
        spare_I = num_gpus - mean.gpu_seconds_I / lengths_s_I
        spare_I[(best.price_I <= 0) & (spare_I > 0)] = 0.0  # a price of 0 cannot fall
        steepness = float(spare_I**2 @ lengths_s_I)
        if steepness <= 0 or refined_aim < _LAST_AIM * best.dual_value:
            break
        newest = answer(demand, grid, num_gpus, np.maximum(best.price_I - aim / steepness * spare_I, 0.0))
        mean = mean.mixed(newest, _best_share(mean, newest, num_gpus, lengths_s_I, newest_share))
        if newest.dual_value < best.dual_value:
            best, failures, aim = newest, 0, aim * 1.2
            continue
        failures += 1
        if failures % _FAILURES_TO_SHORTEN == 0:
            aim *= 0.66
        if failures >= _FAILURES_TO_REFINE:
            refined_aim /= 2
            aim, failures = max(aim, refined_aim / 20), 0
            newest_share = max(0.8 * newest_share, _LEAST_NEWEST_SHARE)
    return best, mean


def _best_share(mean: Answer, newest: Answer, num_gpus: int, lengths_s_I: FloatArray, at_most: float) -> float:
    """Share of the newest answer with which the mean comes closest to full use of each interval."""
    change_I = newest.gpu_seconds_I - mean.gpu_seconds_I
    size = float(change_I**2 @ (1 / lengths_s_I))
    if size <= 0:
        return at_most
    wanted = float((num_gpus * lengths_s_I - mean.gpu_seconds_I) * change_I @ (1 / lengths_s_I)) / size
    return min(max(wanted, at_most / 10), at_most)


@compiled
def _buy(
    price_I: FloatArray,
    instants_s_B: FloatArray,
    first_J: IntArray,
    last_J: IntArray,
    opens_s_J: FloatArray,
    closes_s_J: FloatArray,
    first_step_J: IntArray,
    num_gpus_S: FloatArray,
    gain_S: FloatArray,
    met_J: FloatArray,
    gpu_seconds_I: FloatArray,
) -> float:  # pragma: no cover (compiled)
    """Sum over the jobs of the value of their deadline minus its cost, if positive; fills met_J and gpu_seconds_I.

    A job's cheapest GPU-seconds: each step takes its intervals by price. Of all steps, the next is the one whose next
    interval costs least for each part of the job. Gains fall from step to step: no step precedes the one below it.
    """
    widest, most_steps = 0, 0
    for job in range(len(first_J)):
        widest = max(widest, last_J[job] - first_J[job])
        most_steps = max(most_steps, first_step_J[job + 1] - first_step_J[job])
    bought_interval = np.empty(widest * most_steps, np.int64)
    bought_gpu_seconds = np.empty(widest * most_steps)
    surplus = 0.0
    for job in range(len(first_J)):
        first, num_intervals, step_0 = first_J[job], last_J[job] - first_J[job], first_step_J[job]
        by_price = np.argsort(price_I[first : last_J[job]]) + first
        taken = np.zeros(first_step_J[job + 1] - step_0, np.int64)  # intervals, by step
        left, cost, purchases = 1.0, 0.0, 0
        while left > 0.0 and cost < 1.0:
            step, cheapest = -1, np.inf
            for candidate in range(len(taken)):
                below = num_intervals if candidate == 0 else taken[candidate - 1]
                if taken[candidate] < below:
                    unit_cost = price_I[by_price[taken[candidate]]] / gain_S[step_0 + candidate]
                    if unit_cost < cheapest:
                        step, cheapest = candidate, unit_cost
            if step < 0:
                break
            interval, gain = by_price[taken[step]], gain_S[step_0 + step]
            taken[step] += 1
            start_s = max(opens_s_J[job], instants_s_B[interval])
            end_s = min(closes_s_J[job], instants_s_B[interval + 1])
            gpu_seconds = (end_s - start_s) * num_gpus_S[step_0 + step]
            if gpu_seconds * gain >= left:
                gpu_seconds = left / gain
                left = 0.0
            else:
                left -= gpu_seconds * gain
            cost += gpu_seconds * price_I[interval]
            bought_interval[purchases] = interval
            bought_gpu_seconds[purchases] = gpu_seconds
            purchases += 1
        if left <= 0.0 and cost < 1.0:
            met_J[job] = 1.0
            surplus += 1.0 - float(cost)
            for purchase in range(purchases):
                gpu_seconds_I[bought_interval[purchase]] += bought_gpu_seconds[purchase]
    return surplus
