"""What clocks tell user code stays apart from other numbers, through calculations."""

import json
import time

import pytest

from elasticflow.services.executor.worker.engine.additional_state import AdditionalState
from elasticflow.services.executor.worker.engine.plain_state import plain_state_of
from elasticflow.services.executor.worker.process import users_clock
from elasticflow.services.executor.worker.process.users_clock import Duration, Reading, mark_clock_readings

BEGAN = Reading(100.5)
TOOK = Reading(102.5) - BEGAN


def test_readings_and_durations_are_kept_apart_from_numbers() -> None:
    readings = [BEGAN + 1, 1 + BEGAN, BEGAN - 1.0, BEGAN + TOOK, TOOK + BEGAN]
    durations = [TOOK, TOOK + TOOK, sum([TOOK, TOOK]), TOOK * 2, 2 * TOOK, TOOK / 3, 3 / TOOK, -TOOK, round(TOOK, 1)]
    assert {type(each) for each in readings} == {Reading}
    assert {type(each) for each in durations} == {Duration}
    assert (float(TOOK), float(3 / TOOK), float(BEGAN + TOOK), round(TOOK)) == (2.0, 1.5, 102.5, 2)
    assert json.dumps({"took": TOOK}) == '{"took": 2.0}'


class Job:
    def __init__(self) -> None:
        self.began: float | None = None
        self.took, self.total, self.loss = 0.0, 0.0, 0.0


def test_two_processes_agree_although_their_clocks_differ_and_each_keeps_its_readings() -> None:
    import torch

    jobs, states = [Job(), Job()], list[AdditionalState]()
    for job in jobs:
        optimizer = torch.optim.SGD([torch.ones(1)], lr=0.1)
        states.append(AdditionalState({}, optimizer, plain_state_of(job, ())))
    for number, job in enumerate(jobs, start=1):
        job.began, job.took, job.loss = Reading(1000.0 * number), Duration(0.1 * number), 0.5
        job.total += job.took
    mine, other = states
    assert mine.comparable_plain() == other.comparable_plain()
    mine.note_differing(mine.changed_plain(), other.changed_plain())
    assert mine.newly_differing() == []
    other.set_plain(mine.changed_plain())
    assert (jobs[1].began, jobs[1].total) == (2000.0, 0.1)
    jobs[1].loss = 0.25
    mine.note_differing(mine.changed_plain(), other.changed_plain())
    assert mine.newly_differing() == ["loss"]


def test_only_functions_of_the_users_get_marked_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in users_clock.CLOCKS:
        monkeypatch.setattr(time, name, getattr(time, name))
    monkeypatch.setattr("timeit.default_timer", time.perf_counter)
    mark_clock_readings()
    assert type(time.perf_counter()) is Reading
    monkeypatch.setattr(users_clock, "is_users_frame", lambda frame: False)
    assert type(time.perf_counter()) is float
