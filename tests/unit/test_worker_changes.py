"""What a worker does that has lost a peer, as far as it concerns nobody else."""

import time
from typing import Any

import torch

from services.executor.worker.changes import Changes
from services.executor.worker.groups import PeerLost
from services.executor.worker.handover import HandOver
from services.executor.worker.optimizer_settings import restore, settings_of
from shared.messages.job import JobSpec
from shared.messages.worker_channel import Assignment, ChangeMembership, Interrupted

SPEC = JobSpec(training_function="a:B", global_batch_size=8, max_iterations=10, deadline_in_s=60.0)


class Told:
    """A channel on which changes to generations of one worker come, each after the last was tried."""

    stop_requested = False

    def __init__(self, trainer: "Surviving", *generations: int) -> None:
        self.said: list[Any] = []
        self._trainer = trainer
        self._generations = generations
        self._num_told = 0

    def newest_change(self, wait_s: float) -> ChangeMembership | None:
        time.sleep(wait_s)
        if self._num_told > len(self._trainer.tried) or self._num_told == len(self._generations):
            return None
        self._num_told += 1
        generation = self._generations[self._num_told - 1]
        return ChangeMembership(generation=generation, place=0, world_size=1, meeting_size=1)

    def send(self, message: Any) -> None:
        self.said.append(message)


class Surviving:
    """A trainer whose first attempts to go over fail."""

    iteration = 7
    device = torch.device("cpu")
    assignment = Assignment(
        job_id="job", generation=1, rank=0, world_size=2, spec=SPEC, checkpoint_dir="unused"
    )

    def __init__(self, num_failures: int) -> None:
        self.tried: list[int] = []
        self._num_failures = num_failures

    def mend(self) -> bool:
        return True

    def go_over(self, invited: Any, met: Any) -> HandOver:
        self.tried.append(invited.generation)
        if len(self.tried) <= self._num_failures:
            raise PeerLost("who was lost was among those who met")
        return HandOver(began_s=0.0)


def test_who_survives_is_not_lost_where_those_who_met_do_not_all_live():
    """A change was ready when the peer died; then it comes to nothing, and the next one counts."""
    trainer = Surviving(num_failures=2)
    channel = Told(trainer, 2, 3, 4)
    changes = Changes(trainer, channel, None, since_s=0.0)  # pyright: ignore[reportArgumentType]
    assert changes.survive(PeerLost("killed"))
    assert trainer.tried == [2, 3, 4]
    assert channel.said == [Interrupted(iteration=7)]
    assert not changes.left


def test_a_step_that_is_taken_back_leaves_the_optimizers_settings_as_they_were():
    rate = torch.tensor(0.1)
    optimizer = torch.optim.Adam([torch.zeros(2, requires_grad=True)], lr=rate, betas=(0.9, 0.99))
    before = settings_of(optimizer)
    rate.fill_(0.5)
    optimizer.param_groups[0]["weight_decay"] = 0.3
    restore(optimizer, before)
    (group,) = optimizer.param_groups
    assert (float(group["lr"]), group["betas"], group["weight_decay"]) == (
        float(torch.tensor(0.1)),
        (0.9, 0.99),
        0,
    )
    assert len(group["params"]) == 1
