"""The cheapest schedule of one job in the GPUs that others leave, each resize paid: compiled.

A job that begins to hold n GPUs, from another number or from none, stops for the stop of n and pays for them
meanwhile. Free GPUs and their price are step functions; the job may change its GPUs where these change, and end
anywhere. Axes: P pieces of time, P + 1 instants, L levels, M the most segments of a schedule.
"""

import numpy as np

from elasticflow.shared.scheduling.compiled.compile import compiled
from elasticflow.simulator.bound.feasible_demand import FloatArray, IntArray

MAX_SEGMENTS = 24
_DOUBLINGS, _HALVINGS = 60, 14
_SPARE = 1e-9  # more work than needed, relative: a schedule keeps its deadline in exact arithmetic too


@compiled
def cheapest_schedule(
    instants_s: FloatArray,
    free_P: FloatArray,
    price_P: FloatArray,
    iterations: float,
    num_gpus_L: FloatArray,
    rate_L: FloatArray,
    stop_s_L: FloatArray,
    held: FloatArray,
) -> tuple[int, float]:  # pragma: no cover (compiled)
    """Segments and cost of a schedule of `iterations`; no segments and inf if none was found.

    held, shape (M, 3): filled with start, end and GPUs of each segment. Lagrangian: the value of one iteration is
    raised until the most profitable schedule does enough; its surplus is then cut off where it costs most.
    """
    level_P = np.zeros(len(free_P), np.int64)
    needed = iterations * (1.0 + _SPARE)
    low, high = 0.0, 1e-6
    for _ in range(_DOUBLINGS):
        if _most_profitable(instants_s, free_P, price_P, high, num_gpus_L, rate_L, stop_s_L, level_P) >= needed:
            break
        low, high = high, high * 4.0
    else:
        return 0, np.inf
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _most_profitable(instants_s, free_P, price_P, middle, num_gpus_L, rate_L, stop_s_L, level_P) >= needed:
            high = middle
        else:
            low = middle
    done = _most_profitable(instants_s, free_P, price_P, high, num_gpus_L, rate_L, stop_s_L, level_P)
    starts_s, ends_s = instants_s[:-1].copy(), instants_s[1:].copy()
    _cut(starts_s, ends_s, price_P, num_gpus_L, rate_L, stop_s_L, level_P, done - needed)
    return _gather(starts_s, ends_s, price_P, num_gpus_L, level_P, held)


@compiled
def _most_profitable(
    instants_s: FloatArray,
    free_P: FloatArray,
    price_P: FloatArray,
    value: float,
    num_gpus_L: FloatArray,
    rate_L: FloatArray,
    stop_s_L: FloatArray,
    level_P: IntArray,
) -> float:  # pragma: no cover (compiled)
    """Iterations of the schedule that gains most at this value of one; level_P: its levels, 0 = none, from 1.

    Dynamic program over pieces; gain[level] is the greatest gain so far of a schedule that ends with this level.
    """
    num_pieces, num_levels = len(free_P), len(num_gpus_L)
    gain = np.full(num_levels + 1, -np.inf)
    gain[0] = 0.0
    came_from = np.zeros((num_pieces, num_levels + 1), np.int64)
    for piece in range(num_pieces):
        length_s = instants_s[piece + 1] - instants_s[piece]
        source = int(np.argmax(gain))
        most = gain[source]
        gain[0] = most
        came_from[piece, 0] = source
        for level in range(1, num_levels + 1):
            num_gpus, rate = num_gpus_L[level - 1], rate_L[level - 1]
            if num_gpus > free_P[piece]:
                gain[level] = -np.inf
                continue
            anew = most - value * rate * stop_s_L[level - 1]
            came_from[piece, level] = level if gain[level] >= anew else source
            gain[level] = max(gain[level], anew) + length_s * (value * rate - price_P[piece] * num_gpus)
    level, done = int(np.argmax(gain)), 0.0
    for piece in range(num_pieces - 1, -1, -1):
        level_P[piece] = level
        before = came_from[piece, level]
        if level > 0:
            done += rate_L[level - 1] * (instants_s[piece + 1] - instants_s[piece])
            if before != level:
                done -= rate_L[level - 1] * stop_s_L[level - 1]
        level = before
    return done


@compiled
def _cut(
    starts_s: FloatArray,
    ends_s: FloatArray,
    price_P: FloatArray,
    num_gpus_L: FloatArray,
    rate_L: FloatArray,
    stop_s_L: FloatArray,
    level_P: IntArray,
    surplus: float,
) -> None:  # pragma: no cover (compiled)
    """Cuts `surplus` iterations off the ends of segments, the costliest first; ties: a later end first."""
    while surplus > 0.0:
        highest, cut_piece, at_end = 0.0, -1, False
        for piece in range(len(level_P)):
            level = level_P[piece]
            if level == 0:
                continue
            unit_cost = price_P[piece] * num_gpus_L[level - 1] / rate_L[level - 1]
            last = piece + 1 == len(level_P) or level_P[piece + 1] != level
            first = piece == 0 or level_P[piece - 1] != level
            if (last and unit_cost >= highest) or (first and unit_cost > highest):
                highest, cut_piece, at_end = unit_cost, piece, last
        if cut_piece < 0:
            return
        level = level_P[cut_piece]
        rate, stop_s = float(rate_L[level - 1]), float(stop_s_L[level - 1])
        productive_s = _productive_s(cut_piece, at_end, starts_s, ends_s, level_P, stop_s)
        piece_s = float(ends_s[cut_piece] - starts_s[cut_piece])
        cut_s = min(surplus / rate, piece_s)
        if productive_s <= cut_s:  # remove the whole segment: the rest of it would only be the stop
            surplus -= productive_s * rate
            _drop(cut_piece, at_end, starts_s, ends_s, level_P)
        elif cut_s >= piece_s:
            surplus -= cut_s * rate
            level_P[cut_piece] = 0
        else:
            surplus = 0.0
            if at_end:
                ends_s[cut_piece] -= cut_s
            else:
                starts_s[cut_piece] += cut_s


@compiled
def _productive_s(
    piece: int, at_end: bool, starts_s: FloatArray, ends_s: FloatArray, level_P: IntArray, stop_s: float
) -> float:  # pragma: no cover (compiled)
    """Seconds of progress of the segment that ends, or begins, with this piece."""
    step = -1 if at_end else 1
    other = piece
    while 0 <= other + step < len(level_P) and level_P[other + step] == level_P[piece]:
        other += step
    return max(ends_s[max(piece, other)] - starts_s[min(piece, other)] - stop_s, 0.0)


@compiled
def _drop(
    piece: int, at_end: bool, starts_s: FloatArray, ends_s: FloatArray, level_P: IntArray
) -> None:  # pragma: no cover (compiled)
    level, step = level_P[piece], -1 if at_end else 1
    while 0 <= piece < len(level_P) and level_P[piece] == level:
        level_P[piece] = 0
        piece += step


@compiled
def _gather(
    starts_s: FloatArray,
    ends_s: FloatArray,
    price_P: FloatArray,
    num_gpus_L: FloatArray,
    level_P: IntArray,
    held: FloatArray,
) -> tuple[int, float]:  # pragma: no cover (compiled)
    """Joins successive pieces of one level into segments."""
    segments, cost = 0, 0.0
    for piece in range(len(level_P)):
        if level_P[piece] == 0:
            continue
        num_gpus = num_gpus_L[level_P[piece] - 1]
        cost += price_P[piece] * num_gpus * (ends_s[piece] - starts_s[piece])
        if segments and held[segments - 1, 1] == starts_s[piece] and held[segments - 1, 2] == num_gpus:
            held[segments - 1, 1] = ends_s[piece]
        elif segments == MAX_SEGMENTS:
            return 0, np.inf
        else:
            held[segments, 0], held[segments, 1], held[segments, 2] = starts_s[piece], ends_s[piece], num_gpus
            segments += 1
    return segments, cost
