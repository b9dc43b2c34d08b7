"""The split of virtual nodes over GPU types: its time, and its optimum beside that of an integer linear program.

Axes: K = (type, virtual nodes on one GPU).
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.optimize import LinearConstraint, milp

from benchmarks.report import Measured, Row
from benchmarks.timing import Took, timed
from elasticflow.shared.scheduling.heterogeneous.step_times import CommunicationTimes
from elasticflow.shared.scheduling.heterogeneous.virtual_node_split import (
    GpusOfType,
    TooLittleMemory,
    VirtualNodeSplit,
    split_virtual_nodes,
)

_NUM_GPUS = 2048
_ROUNDING = 1e-6  # relative; of the integer linear program


def measure_solver(*, num_splits: int, num_checked: int, seed: int) -> Measured:
    """So many splits for each number of types and of virtual nodes; so many small ones are checked."""
    rng = np.random.default_rng(seed)
    return {
        "seed": seed,
        "gpus": _NUM_GPUS,
        "groups": [
            _times(rng, num_types, num_virtual_nodes, num_splits)
            for num_types in (1, 2, 3, 4)
            for num_virtual_nodes in (8, 64, 256)
        ],
        "checked": _checked(rng, num_checked),
    }


def _times(rng: np.random.Generator, num_types: int, num_virtual_nodes: int, num_splits: int) -> Measured:
    """Random GPUs, from one to all of the pool for each type, and communication up to the time of the computation."""
    tooks = list[Took]()
    for _ in range(num_splits):
        num_gpus = np.exp2(rng.uniform(0, np.log2(_NUM_GPUS / num_types), num_types)).astype(int)
        types = [_communicating(rng, gpus) for gpus in _random_types(rng, num_gpus, num_virtual_nodes)]
        _, took = timed(lambda: split_virtual_nodes(types, num_virtual_nodes))  # noqa: B023
        tooks.append(took)
    cpu_us = [1e6 * took.cpu_s for took in tooks]
    p50, p99 = np.percentile(cpu_us, [50, 99])
    return {
        "types": num_types,
        "virtual_nodes": num_virtual_nodes,
        "splits": num_splits,
        "cpu_us": {"p50": float(p50), "p99": float(p99), "max": max(cpu_us)},
    }


def _checked(rng: np.random.Generator, num_checked: int) -> Measured:
    """Small splits, with memory limits, beside the optimum of an integer linear program (HiGHS)."""
    num_equal, split_us, program_us = 0, list[float](), list[float]()
    for _ in range(num_checked):
        num_virtual_nodes = int(rng.integers(4, 17))
        types = _random_types(rng, rng.integers(1, 9, int(rng.integers(1, 5))), num_virtual_nodes, limited=True)
        found, took = timed(lambda: split_virtual_nodes(types, num_virtual_nodes, least_gain=0.0))  # noqa: B023
        shortest_s, program_took = timed(lambda: _shortest_s(types, num_virtual_nodes))  # noqa: B023
        num_equal += _same(found, shortest_s)
        split_us.append(1e6 * took.cpu_s)
        program_us.append(1e6 * program_took.cpu_s)
    return {
        "splits": num_checked,
        "equal": num_equal,
        "cpu_us_p50": float(np.median(split_us)),
        "linear_program_cpu_us_p50": float(np.median(program_us)),
    }


def _random_types(
    rng: np.random.Generator, num_gpus: np.ndarray, num_virtual_nodes: int, *, limited: bool = False
) -> list[GpusOfType]:
    """Speeds up to 16:1, and a fixed cost of up to two virtual nodes. limited: by the memory."""
    types = list[GpusOfType]()
    for number, num_of_type in enumerate(num_gpus):
        each_s = float(np.exp2(rng.uniform(-4, 0)))
        fixed_s = each_s * float(rng.uniform(0, 2))
        most = int(rng.integers(0, num_virtual_nodes + 1)) if limited else num_virtual_nodes
        step_s_V = tuple(fixed_s + each_s * count for count in range(1, most + 1))
        types.append(GpusOfType(name=f"type-{number}", num_gpus=int(num_of_type), step_s_V=step_s_V))
    return types


def _communicating(rng: np.random.Generator, gpus: GpusOfType) -> GpusOfType:
    """256 workers communicate for as long as one virtual node takes on this type at most."""
    added_s = rng.uniform(0, gpus.step_s_V[0] / 8)  # by each doubling of the workers
    return replace(gpus, communication=CommunicationTimes((2,), (added_s,)))


def _shortest_s(types: list[GpusOfType], num_virtual_nodes: int) -> float | None:
    """The shortest step; None if the memory is too small.

    Variables: GPUs with each count, whether there are any, and the step's bound.
    """
    choices = [
        (which, gpus.num_gpus, count, step_s)
        for which, gpus in enumerate(types)
        for count, step_s in enumerate(gpus.step_s_V, start=1)
    ]
    if not choices:
        return None
    type_K, num_gpus_K, count_K, step_s_K = map(np.array, zip(*choices, strict=True))
    zero_KK, one_KK = np.zeros((len(choices), len(choices))), np.eye(len(choices))
    zero_K1 = np.zeros((len(choices), 1))
    of_one_type = [(type_K == which) / gpus.num_gpus for which, gpus in enumerate(types)]
    solved = milp(
        np.eye(2 * len(choices) + 1)[-1],
        integrality=np.array([1] * (2 * len(choices)) + [0]),
        constraints=[
            LinearConstraint(np.concatenate([count_K, 0 * count_K, [0]]), num_virtual_nodes, num_virtual_nodes),
            LinearConstraint(np.array([[*share_K, *(0 * share_K), 0] for share_K in of_one_type]), 0, 1),
            LinearConstraint(np.hstack([one_KK, -np.diag(num_gpus_K), zero_K1]), -np.inf, 0),
            LinearConstraint(np.hstack([zero_KK, one_KK, zero_K1]), 0, 1),
            LinearConstraint(np.hstack([zero_KK, np.diag(step_s_K), zero_K1 - 1]), -np.inf, 0),
        ],
    )
    return float(solved.fun) if solved.success else None


def _same(found: VirtualNodeSplit | TooLittleMemory, shortest_s: float | None) -> bool:
    if isinstance(found, TooLittleMemory) or shortest_s is None:
        return isinstance(found, TooLittleMemory) and shortest_s is None
    return abs(found.step_s - shortest_s) <= _ROUNDING * shortest_s


def rows(measured: Measured) -> Iterator[Row]:
    for group in measured["groups"]:
        what = f"GPU types: {group['types']}, {group['virtual_nodes']} virtual nodes, up to {measured['gpus']:,} GPUs"
        cpu_us = group["cpu_us"]
        yield Row(what, f"p50 {cpu_us['p50']:.0f} µs, p99 {cpu_us['p99']:.0f} µs", "", f"{group['splits']} splits")
    checked = measured["checked"]
    beside = f"{checked['cpu_us_p50']:.0f} µs beside {checked['linear_program_cpu_us_p50']:.0f} µs (p50)"
    yield Row("as short as by integer linear programs", f"{checked['equal']} of {checked['splits']}", "all", beside)
