"""What must be true afterwards, read from the ledger and from what the workers wrote while they trained.

Nothing here asks the code under test for its opinion; only the bytes are decoded with it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from shared.messages.events import JobAdmitted, JobRejected, PlanDecided
from simulator.invariants import violations
from simulator.replay import Entry

_STEP = re.compile(r"^step (\d+) of process (\d+) (begins|ends) at ([\d.]+)$", re.MULTILINE)
_LOG = re.compile(r"^g(\d+)-r(\d+)$")


def assert_sound(entries: tuple[Entry, ...], data_dir: Path) -> None:
    """One chain of decisions, no job decided twice, no GPU held twice, no two generations at once."""
    assert list(violations(entries)) == []
    assert_one_chain(entries)
    assert_decided_once(entries)
    assert list(overlaps(data_dir)) == []


def assert_one_chain(entries: tuple[Entry, ...]) -> None:
    """Every decision had seen all decisions before it: compare-and-set let no second one through."""
    last_decision = 0
    for entry in entries:
        if isinstance(entry.message, PlanDecided):
            assert last_decision <= entry.message.based_on < entry.sequence, entry
            last_decision = entry.sequence


def assert_decided_once(entries: tuple[Entry, ...]) -> None:
    """Whoever asked how often, and whoever was killed while deciding."""
    times = Counter(decision.job_id for decision in decisions(entries))
    assert {job_id: number for job_id, number in times.items() if number > 1} == {}


def decisions(entries: tuple[Entry, ...]) -> list[JobAdmitted | JobRejected]:
    """Admission's final words; not those on a second job of a name that is taken."""
    return [
        event
        for entry in entries
        if isinstance(entry.message, PlanDecided)
        for event in entry.message.events
        if isinstance(event, JobAdmitted) or (isinstance(event, JobRejected) and event.reason != "duplicate")
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """What one worker process did. Times are of the machine's monotonic clock."""

    job_id: str
    generation: int
    rank: int
    pid: int
    began_s: float
    ended_s: float
    iterations: frozenset[int]

    @property
    def in_words(self) -> str:
        who = f"{self.job_id} g{self.generation} rank {self.rank} (process {self.pid})"
        return f"{who} trained from {self.began_s:.3f} to {self.ended_s:.3f}"


def trainings(data_dir: Path) -> list[Training]:
    """All steps that any worker ever took, by process."""
    found: list[Training] = []
    for log in sorted(data_dir.glob("logs/*/g*-r*.log")):
        name = _LOG.match(log.stem)
        assert name is not None, log
        by_pid: dict[int, list[tuple[int, float]]] = defaultdict(list)
        for iteration, pid, _, at_s in _STEP.findall(log.read_text(errors="replace")):
            by_pid[int(pid)].append((int(iteration), float(at_s)))
        for pid, steps in by_pid.items():
            found.append(
                Training(
                    job_id=log.parent.name,
                    generation=int(name[1]),
                    rank=int(name[2]),
                    pid=pid,
                    began_s=min(at_s for _, at_s in steps),
                    ended_s=max(at_s for _, at_s in steps),
                    iterations=frozenset(iteration for iteration, _ in steps),
                )
            )
    return found


def overlaps(data_dir: Path) -> Iterator[str]:
    """Processes that trained one job at the same time and should not have."""
    all_of_them = sorted(trainings(data_dir), key=lambda t: (t.job_id, t.generation, t.rank, t.began_s))
    for index, one in enumerate(all_of_them):
        for other in all_of_them[index + 1 :]:
            if one.job_id != other.job_id:
                break
            same_generation = one.generation == other.generation
            if same_generation and one.rank != other.rank:
                continue
            if one.began_s <= other.ended_s and other.began_s <= one.ended_s:
                yield f"{one.in_words} and {other.in_words}"


def iterations_trained(data_dir: Path, job_id: str) -> set[int]:
    """Iterations that at least one worker of the job took, in any generation."""
    return {
        iteration
        for training in trainings(data_dir)
        if training.job_id == job_id
        for iteration in training.iterations
    }
