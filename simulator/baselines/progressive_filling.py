"""The loops of ElasticFlow's Algorithm 1 over time slots, compiled.

Axes: T = slots from now on; L = levels of one job, ascending, level 0 without GPUs first.
"""

from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled


@compiled
def fill(
    plan_T: Integers,
    free_T: Integers,
    seconds_T: Floats,
    levels_L: Integers,
    rates_L: Floats,
    first: int,
    iterations: float,
) -> bool:
    """Write into plan_T the positions of the levels from slot `first` on; whether the iterations are done by its end.

    The cap rises level by level; for each one the slots are filled from the last to the first until it is enough.
    """
    done = 0.0
    for slot in range(first):
        done += rates_L[plan_T[slot]] * seconds_T[slot]
    plan_T[first:] = 0
    if done >= iterations:
        return True
    for cap in range(1, len(levels_L)):
        for slot in range(len(plan_T) - 1, first - 1, -1):
            level = cap
            while levels_L[level] > free_T[slot]:
                level -= 1
            done += (rates_L[level] - rates_L[plan_T[slot]]) * seconds_T[slot]
            plan_T[slot] = level
            if done >= iterations:
                return True
    return False


@compiled
def fill_forward(
    plan_T: Integers, free_T: Integers, seconds_T: Floats, levels_L: Integers, rates_L: Floats, iterations: float
) -> None:
    """Write into plan_T the largest free level of each slot, from the first one until the iterations are done."""
    plan_T[:] = 0
    for slot in range(len(plan_T)):
        if iterations <= 0:
            return
        level = len(levels_L) - 1
        while levels_L[level] > free_T[slot]:
            level -= 1
        plan_T[slot] = level
        iterations -= rates_L[level] * seconds_T[slot]


@compiled
def gpu_seconds(plan_T: Integers, seconds_T: Floats, levels_L: Integers, rates_L: Floats, iterations: float) -> float:
    """Of the plan until the iterations are done."""
    used = 0.0
    for slot in range(len(plan_T)):
        rate = rates_L[plan_T[slot]]
        seconds = seconds_T[slot]
        if rate > 0.0:
            seconds = min(seconds, iterations / rate)
            iterations -= rate * seconds
            used += levels_L[plan_T[slot]] * seconds
        if iterations <= 0.0:
            break
    return used
