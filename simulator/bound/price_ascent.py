"""Prices of GPU time and the bound that they prove: the relaxation's Lagrangian dual, for programs of any size.

Let a GPU-second of type g in interval i cost price_GI[g, i]. Each job buys the cheapest GPU-seconds that finish it, if
they cost less than the value of its deadline, 1. Then, by weak duality, *whatever the prices*,

    sum over G, I of price * capacity  +  sum over J of (1 - cost of the job), where positive

is at least what any schedule meets. `ascend` looks for prices that make it small.
Axes as in `feasible_demand`: G GPU types, J jobs, S steps, I intervals.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from elasticflow.shared.scheduling.compiled_loops import compiled
from elasticflow.simulator.bound.feasible_demand import FeasibleDemand, FloatArray, Grid, IntArray

# Of the volume algorithm; chosen once, for all traces.
_FIRST_AIM, _LAST_AIM = 0.05, 1e-6  # how much of the bound a step hopes to take off
_FAILURES_TO_SHORTEN, _FAILURES_TO_REFINE = 8, 40
_NEWEST_SHARE, _LEAST_NEWEST_SHARE = 0.1, 0.005


@dataclass(frozen=True, slots=True)
class Answer:
    """The jobs' answer to prices. met_J: 1 for jobs that buy; gpu_seconds_GI: what they buy."""

    price_GI: FloatArray
    dual_value: float
    met_J: FloatArray
    gpu_seconds_GI: FloatArray

    def mixed(self, newest: "Answer", share: float) -> "Answer":
        """This mean with a share of a newer answer; approaches an optimum of the relaxation."""
        return replace(
            self,
            met_J=self.met_J + share * (newest.met_J - self.met_J),
            gpu_seconds_GI=self.gpu_seconds_GI + share * (newest.gpu_seconds_GI - self.gpu_seconds_GI),
        )


def answer(demand: FeasibleDemand, grid: Grid, num_gpus_G: IntArray, price_GI: FloatArray) -> Answer:
    """The purchases of the jobs at these prices (each >= 0), and the bound that follows."""
    met_J, gpu_seconds_GI = np.zeros(demand.num_jobs), np.zeros(price_GI.shape)
    windows = _Windows(demand.opens_s_J, demand.closes_s_J, grid.first_J, grid.last_J)
    steps = _Steps(demand.first_step_J, demand.type_S, demand.num_gpus_S, demand.gain_S)
    surplus = _buy(price_GI, grid.instants_s_B, windows, steps, met_J, gpu_seconds_GI)
    income = sum(
        _over_time(price_I, grid.lengths_s_I) * num_gpus
        for price_I, num_gpus in zip(price_GI, num_gpus_G.tolist(), strict=True)
    )
    return Answer(price_GI, income + surplus, met_J, gpu_seconds_GI)


def ascend(demand: FeasibleDemand, grid: Grid, num_gpus_G: IntArray, max_answers: int) -> tuple[Answer, Answer]:
    """The answer to the best prices found, and the mean answer, close to an optimum of the relaxation.

    Source: Barahona and Anbil, "The volume algorithm", Mathematical Programming 87 (2000): steps from the best
    prices along the mean of the past answers' subgradients, which converges where a plain subgradient zigzags.
    """
    lengths_s_I = grid.lengths_s_I
    best = mean = answer(demand, grid, num_gpus_G, np.zeros((len(num_gpus_G), len(lengths_s_I))))
    aim = refined_aim = _FIRST_AIM * max(best.dual_value, 1.0)
    newest_share, failures = _NEWEST_SHARE, 0
    for _ in range(max_answers - 1):
        spare_GI = num_gpus_G[:, None] - mean.gpu_seconds_GI / lengths_s_I
        spare_GI[(best.price_GI <= 0) & (spare_GI > 0)] = 0.0  # a price of 0 cannot fall
        steepness = sum(_over_time(spare_I**2, lengths_s_I) for spare_I in spare_GI)
        if steepness <= 0 or refined_aim < _LAST_AIM * best.dual_value:
            break
        newest = answer(demand, grid, num_gpus_G, np.maximum(best.price_GI - aim / steepness * spare_GI, 0.0))
        mean = mean.mixed(newest, _best_share(mean, newest, num_gpus_G, lengths_s_I, newest_share))
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


def _best_share(mean: Answer, newest: Answer, num_gpus_G: IntArray, lengths_s_I: FloatArray, at_most: float) -> float:
    """Share of the newest answer with which the mean comes closest to full use of each interval."""
    change_GI = newest.gpu_seconds_GI - mean.gpu_seconds_GI
    size = sum(_over_time(change_I**2, 1 / lengths_s_I) for change_I in change_GI)
    if size <= 0:
        return at_most
    missing_GI = (num_gpus_G[:, None] * lengths_s_I - mean.gpu_seconds_GI) * change_GI
    wanted = sum(_over_time(missing_I, 1 / lengths_s_I) for missing_I in missing_GI) / size
    return min(max(wanted, at_most / 10), at_most)


def _over_time(value_I: FloatArray, weight_I: FloatArray) -> float:
    return float(value_I @ weight_I)


class _Windows(NamedTuple):
    """When jobs can use GPUs: in seconds, and by the intervals that overlap with it (see `Grid`)."""

    opens_s_J: FloatArray
    closes_s_J: FloatArray
    first_J: IntArray
    last_J: IntArray


class _Steps(NamedTuple):
    """The steps of all curves (see `FeasibleDemand`)."""

    first_step_J: IntArray
    type_S: IntArray
    num_gpus_S: FloatArray
    gain_S: FloatArray


@compiled
def _buy(
    price_GI: FloatArray,
    instants_s_B: FloatArray,
    windows: _Windows,
    steps: _Steps,
    met_J: FloatArray,
    gpu_seconds_GI: FloatArray,
) -> float:  # pragma: no cover (compiled)
    """Sum over the jobs of the value of their deadline minus its cost, if positive; fills met_J and gpu_seconds_GI.

    A job's cheapest GPU-seconds: each step takes the intervals of its type by price. Of all steps, the next is the one
    whose next interval costs least for each part of the job. Gains fall from step to step of a type: no step precedes
    the one below it.
    """
    opens_s_J, closes_s_J, first_J, last_J = windows
    first_step_J, type_S, num_gpus_S, gain_S = steps
    num_types = price_GI.shape[0]
    widest, most_steps = 0, 0
    for job in range(len(first_J)):
        widest = max(widest, last_J[job] - first_J[job])
        most_steps = max(most_steps, first_step_J[job + 1] - first_step_J[job])
    bought_type = np.empty(widest * most_steps, np.int64)
    bought_interval = np.empty(widest * most_steps, np.int64)
    bought_gpu_seconds = np.empty(widest * most_steps)
    surplus = 0.0
    for job in range(len(first_J)):
        first, num_intervals, step_0 = first_J[job], last_J[job] - first_J[job], first_step_J[job]
        by_price_GI = np.empty((num_types, num_intervals), np.int64)
        for gpu_type in range(num_types):
            by_price_GI[gpu_type] = np.argsort(price_GI[gpu_type, first : last_J[job]]) + first
        taken = np.zeros(first_step_J[job + 1] - step_0, np.int64)  # intervals, by step
        left, cost, purchases = 1.0, 0.0, 0
        while left > 0.0 and cost < 1.0:
            step, cheapest = -1, np.inf
            for candidate in range(len(taken)):
                gpu_type = type_S[step_0 + candidate]
                is_first = candidate == 0 or type_S[step_0 + candidate - 1] != gpu_type
                below = num_intervals if is_first else taken[candidate - 1]
                if taken[candidate] < below:
                    interval = by_price_GI[gpu_type, taken[candidate]]
                    unit_cost = price_GI[gpu_type, interval] / gain_S[step_0 + candidate]
                    if unit_cost < cheapest:
                        step, cheapest = candidate, unit_cost
            if step < 0:
                break
            gpu_type, gain = type_S[step_0 + step], gain_S[step_0 + step]
            interval = by_price_GI[gpu_type, taken[step]]
            taken[step] += 1
            start_s = max(opens_s_J[job], instants_s_B[interval])
            end_s = min(closes_s_J[job], instants_s_B[interval + 1])
            gpu_seconds = (end_s - start_s) * num_gpus_S[step_0 + step]
            if gpu_seconds * gain >= left:
                gpu_seconds = left / gain
                left = 0.0
            else:
                left -= gpu_seconds * gain
            cost += gpu_seconds * price_GI[gpu_type, interval]
            bought_type[purchases], bought_interval[purchases] = gpu_type, interval
            bought_gpu_seconds[purchases] = gpu_seconds
            purchases += 1
        if left <= 0.0 and cost < 1.0:
            met_J[job] = 1.0
            surplus += 1.0 - float(cost)
            for purchase in range(purchases):
                gpu_seconds_GI[bought_type[purchase], bought_interval[purchase]] += bought_gpu_seconds[purchase]
    return surplus
