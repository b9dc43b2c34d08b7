"""Invariants after a fault, checked on the ledger and on the log files of the workers.

The checks use no code under test except the codec.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from elasticflow.shared.messages.events import JobAdmitted, JobRejected, PlanDecided
from elasticflow.simulator.pipeline.invariants import violations
from elasticflow.simulator.replay.recorded_ledger import Entry

_STEP = re.compile(r"^step (\d+) of process (\d+) (begins|ends) at ([\d.]+)$", re.MULTILINE)


def assert_sound(entries: tuple[Entry, ...], data_dir: Path) -> None:
    """One chain of decisions; no job decided twice, no GPU held twice, no two generations at once."""
    assert list(violations(entries)) == []
    assert_one_chain(entries)
    assert_decided_once(entries)
    assert list(overlaps(data_dir)) == []


def assert_one_chain(entries: tuple[Entry, ...]) -> None:
    """Every decision is based on all earlier decisions: compare-and-set accepted no concurrent one."""
    last_decision = 0
    for entry in entries:
        if isinstance(entry.message, PlanDecided):
            assert last_decision <= entry.message.based_on < entry.sequence, entry
            last_decision = entry.sequence


def assert_decided_once(entries: tuple[Entry, ...]) -> None:
    """Each job has one decision, despite repeated commands and killed services."""
    times = Counter(decision.job_id for decision in decisions(entries))
    assert {job_id: number for job_id, number in times.items() if number > 1} == {}


def decisions(entries: tuple[Entry, ...]) -> list[JobAdmitted | JobRejected]:
    """Admission's final decisions, without rejections of duplicate ids."""
    return [
        event
        for entry in entries
        if isinstance(entry.message, PlanDecided)
        for event in entry.message.events
        if isinstance(event, JobAdmitted) or (isinstance(event, JobRejected) and event.reason != "duplicate")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One step of a worker process. Times are of the machine's monotonic clock."""

    job_id: str
    pid: int
    iteration: int
    began_s: float
    ended_s: float

    @property
    def in_words(self) -> str:
        return (
            f"step {self.iteration} of {self.job_id} by process {self.pid}, "
            f"from {self.began_s:.3f} to {self.ended_s:.3f}"
        )


def steps(data_dir: Path) -> list[Step]:
    """All completed steps of all workers, by job and time. An interrupted step does not count."""
    found: list[Step] = []
    for log in sorted(data_dir.glob("logs/*/g*-r*.log")):
        began_s: dict[tuple[int, int], float] = {}
        for number, process, what, at in _STEP.findall(log.read_text(errors="replace")):
            iteration, pid = int(number), int(process)
            if what == "begins":
                began_s[iteration, pid] = float(at)
            elif (iteration, pid) in began_s:
                began = began_s.pop((iteration, pid))
                found.append(
                    Step(job_id=log.parent.name, pid=pid, iteration=iteration, began_s=began, ended_s=float(at))
                )
    return sorted(found, key=lambda step: (step.job_id, step.began_s))


def overlaps(data_dir: Path) -> Iterator[str]:
    """Workers that trained one job at the same time, but not together.

    Workers of one generation are never more than one step apart, whatever generation they started in.
    """
    under_way: list[Step] = []
    for step in steps(data_dir):
        under_way = [other for other in under_way if other.job_id == step.job_id and other.ended_s >= step.began_s]
        for other in under_way:
            if other.pid != step.pid and abs(other.iteration - step.iteration) > 1:
                yield f"{other.in_words} and {step.in_words}"
        under_way.append(step)


def iterations_trained(data_dir: Path, job_id: str) -> set[int]:
    """Iterations that at least one worker of the job completed, in any generation."""
    return {step.iteration for step in steps(data_dir) if step.job_id == job_id}
