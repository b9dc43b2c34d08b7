"""Checks a packing over time: whole blocks for all promised jobs at each instant, and migrations that are paid.

All in whole numbers, without tolerance. A job that moves to other GPUs while their number stays stops as long as at a
change to that number. It pays the iterations of that stop from what its own schedule does beyond the work that is left.
So every job still ends in time. The search shares with this only how schedules are read.
"""

from collections import defaultdict
from collections.abc import Iterator
from fractions import Fraction
from itertools import pairwise
from typing import NamedTuple

from elasticflow.simulator.verification.certificate_checker import runs_from, spare_iterations
from elasticflow.simulator.verification.certificates import CertifiedPromise, Packed, PackedNodes, PackingCertificate


class _Change(NamedTuple):
    """At one instant GPUs are left before others are taken."""

    at_s: float
    takes: bool
    packed: Packed


def check_packing(certificate: PackingCertificate) -> list[str]:
    """What is wrong, one sentence each."""
    problems, changes = list[str](), list[_Change]()
    by_job = defaultdict[str, list[Packed]](list)
    for packed in sorted(certificate.packing, key=lambda packed: packed.from_s):
        by_job[packed.job_id].append(packed)
    for promise in certificate.promises:
        try:
            changes += _changes(promise, by_job.pop(promise.job.job_id, []), certificate)
        except _WrongError as wrong:
            problems.append(f"{promise.job.job_id}: {wrong}")
    problems += [f"{job_id}: it is not promised" for job_id in by_job]
    return problems or list(_taken_twice(changes))


class _WrongError(Exception):
    """Why the packing does not hold for one job."""


def _changes(promise: CertifiedPromise, placed: list[Packed], certificate: PackingCertificate) -> list[_Change]:
    """When the job takes and leaves GPUs; it has blocks of the right size in each run, and pays for its moves."""
    changes, lost = list[_Change](), Fraction(0)
    left = list(placed)
    for run in runs_from(promise, certificate.now_s):
        here = [packed for packed in left if run.start_s <= packed.from_s < run.end_s]
        left = [packed for packed in left if packed not in here]
        if not here or here[0].from_s != run.start_s:
            raise _WrongError(f"it has no GPUs from {run.start_s} s on")
        for packed in here:
            _require_blocks(packed, run.num_gpus, promise.job.gpus_per_replica, certificate.nodes)
        moves = sum(_positions(one) != _positions(other) for one, other in pairwise(here))
        if run.start_s == certificate.now_s and run.num_gpus == promise.job.current_num_gpus:
            moves += _positions(here[0]) != set(certificate.positions.get(promise.job.job_id, ()))
        (level,) = (level for level in promise.job.levels if level.num_gpus == run.num_gpus)
        lost += moves * Fraction(level.iterations_per_s) * Fraction(level.stop_s)
        for packed, until_s in zip(here, [*(packed.from_s for packed in here[1:]), run.end_s], strict=True):
            changes += [_Change(packed.from_s, True, packed), _Change(until_s, False, packed)]
    if left:
        raise _WrongError(f"it has GPUs at {left[0].from_s} s, when its schedule holds none")
    spare = spare_iterations(promise, certificate.now_s)
    if isinstance(spare, str):
        raise _WrongError(spare)
    if lost and spare < lost:
        raise _WrongError(f"its moves take {float(lost)} iterations, and its schedule spares {float(spare)}")
    return changes


def _require_blocks(packed: Packed, num_gpus: int, gpus_per_replica: int, nodes: PackedNodes) -> None:
    """A job has one aligned block within a node if its promise counts on that, else several smaller ones."""
    size = nodes.unit(num_gpus, gpus_per_replica)
    is_enough = packed.size == size and len(_positions(packed)) == num_gpus
    if not is_enough or not all(_is_block(start, size, nodes.num_gpus) for start in packed.starts):
        raise _WrongError(f"its GPUs at {packed.from_s} s are no block of {num_gpus}")


def _is_block(start: int, size: int, num_gpus_by_node: tuple[int, ...]) -> bool:
    """Whether so many GPUs from there on are an aligned block within a node."""
    for num_gpus in num_gpus_by_node:
        if 0 <= start < num_gpus:
            return start % size == 0 and start + size <= num_gpus
        start -= num_gpus
    return False


def _positions(packed: Packed) -> set[int]:
    return {start + at for start in packed.starts for at in range(packed.size)}


def _taken_twice(changes: list[_Change]) -> Iterator[str]:
    owner = dict[int, str]()
    for at_s, takes, packed in sorted(changes):
        for position in sorted(_positions(packed)):
            if not takes:
                del owner[position]
            elif position in owner:
                yield f"{packed.job_id} and {owner[position]} have GPU {position} at {at_s} s"
                return
            else:
                owner[position] = packed.job_id
