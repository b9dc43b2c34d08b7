"""Changes of who trains, without a stop: prepared beside the training, made at a step boundary, told afterwards.

Newcomers start, everybody meets, groups are built; it takes as long as it takes, and nobody waits for it. A worker that
is ready says so at each step boundary, and where all say so, all go over. If it comes to nothing, e.g. for a newcomer
that died, the old generation trains on until its executor says what is to be instead.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from services.executor.worker.channel import Channel
from services.executor.worker.device import MemoryExceeded, release_memory
from services.executor.worker.groups import Group, PeerLost
from services.executor.worker.handover import HandOver
from services.executor.worker.meeting import Invitation, Met, changed, invitation, meet, open_rendezvous
from services.executor.worker.plan import Plan, plan_of
from services.executor.worker.trainer import Trainer
from services.executor.worker.training_function import TrainingFailed
from shared.messages.from_worker import Interrupted, Started, Switched
from shared.messages.resize_timeline import ResizeTimeline

_LOOK_S = 0.002
_STEPS_TO_SAY_SO = 2  # that this worker is ready: the present one, and the next

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class _Made:
    """A change that nobody was told of yet. invited: None if this worker is the newcomer."""

    handed: HandOver
    since_s: float
    invited: Invitation | None


class Changes:
    """Of those with whom one worker trains. handed: what it was given when it came to others that trained; None if it
    began with all of them. since_s: its birth."""

    def __init__(
        self, trainer: Trainer, channel: Channel, handed: HandOver | None, *, since_s: float
    ) -> None:
        self._trainer, self._channel = trainer, channel
        self._plan = plan_of(
            trainer.function, trainer.spec, trainer.model, trainer.optimizer, trainer.dataset.samples_told
        )
        self._preparation: Preparation | None = None
        self._going_over: Met | None = None
        self._made = None if handed is None else _Made(handed, since_s, None)
        self._waits = False  # for others, between two steps
        self.left = False

    def step(self, *, stop: bool) -> tuple[bool, bool]:
        """One step. Whether all stop after it, and whether all go over to another generation."""
        self._look()
        first, began_s = self._trainer.iteration, time.monotonic()
        preparation = self._preparation
        coming = preparation.invited if preparation and preparation.ready_for else None
        agreement = self._trainer.step(stop=stop, coming=coming)
        if self._made is not None:
            self._tell(self._made, first, began_s)
            self._made = None
        return agreement.stop, agreement.switch

    def _look(self, wait_s: float = 0.0) -> None:
        if (change := self._channel.newest_change(wait_s)) is not None:
            invited = changed(invitation(self._trainer.assignment, self._trainer.device), change)
            if self._preparation is not None:
                self._preparation.give_up()
            self._preparation = Preparation(invited, self._plan, self._channel, self._goes_over_at)
        if self._preparation is not None and self._preparation.failed is not None:
            raise self._preparation.failed

    def _goes_over_at(self) -> int:
        """Steps done then, if all are ready now: who trains says so in the next step."""
        return self._trainer.iteration + (0 if self._waits else _STEPS_TO_SAY_SO)

    @property
    def groups(self) -> Iterator[Group]:
        """All in which this worker may wait for others, now or next."""
        if (group := self._trainer.members.group) is not None:
            yield group
        if (going_over := self._going_over) is not None:
            yield from going_over.groups
        if (preparation := self._preparation) is not None and preparation.ready_for:
            yield from preparation.met.groups

    def go_over(self) -> None:
        """All workers do so at once; those who are not of the new generation have `left` then."""
        preparation, self._preparation = self._preparation, None
        assert preparation is not None, "it has said that it was ready"
        self._going_over = preparation.met
        handed = self._trainer.go_over(preparation.invited, preparation.met)
        self._going_over = None
        self._waits = False
        self._made = _Made(handed, preparation.began_s, preparation.invited)
        self.left = not preparation.invited.stays

    def tell_interrupted(self, cause: PeerLost | MemoryExceeded) -> None:
        """This worker is at a step boundary, and holds nothing of the step that came to nothing."""
        log.warning("interrupted", iteration=self._trainer.iteration, reason=str(cause))
        size = 0
        if isinstance(cause, MemoryExceeded):
            size = cause.micro_batch_size
            release_memory(self._trainer.device)
        self._channel.send(Interrupted(iteration=self._trainer.iteration, micro_batch_size=size))

    def survive(self) -> bool:
        """A peer is gone, or a micro-batch was too big: wait for others, or for smaller ones, and go on from the newest
        step that anybody has done. False if this worker is to stop instead. Raises PeerLost if one more is gone on the
        way."""
        self._waits = True
        while not self._channel.stop_requested:
            self._look(wait_s=_LOOK_S)
            if self._preparation is not None and self._preparation.ready_for:
                self.go_over()
                return True
        return False

    def _tell(self, made: _Made, first: int, step_began_s: float) -> None:
        """After the first step."""
        timeline = ResizeTimeline(
            prepare_s=max(made.handed.began_s - made.since_s, 0.0),
            stop_s=step_began_s - made.handed.began_s,
            first_step_s=time.monotonic() - step_began_s,
            bytes_moved=made.handed.num_bytes,
        )
        if made.invited is None:
            self._channel.send(Started(iteration=first, resize=timeline))
        else:
            generation, rank = made.invited.generation, made.invited.place
            self._channel.send(Switched(generation=generation, rank=rank, iteration=first, resize=timeline))
        log.info(
            "membership_changed",
            iteration=first,
            world_size=self._trainer.members.world_size,
            prepare_s=round(timeline.prepare_s, 3),
            stop_s=round(timeline.stop_s, 4),
            bytes_moved=timeline.bytes_moved,
        )


class Preparation:
    """Of another generation. Begins at once, in a thread of its own, beside what is left of one that was given up."""

    def __init__(
        self, invited: Invitation, plan: Plan, channel: Channel, goes_over_at: Callable[[], int]
    ) -> None:
        self._goes_over_at = goes_over_at
        self.invited = invited
        self.failed: TrainingFailed | None = None
        self._plan = plan
        self.began_s = time.monotonic()
        self._channel = channel
        self._met: Met | None = None
        self._given_up = threading.Event()
        threading.Thread(target=self._prepare, name="preparation", daemon=True).start()

    @property
    def ready_for(self) -> int:
        """The generation that is prepared, 0 as long as it is not."""
        return 0 if self._met is None else self.invited.generation

    @property
    def met(self) -> Met:
        """Once it is ready."""
        assert self._met is not None
        return self._met

    def give_up(self) -> None:
        """Another one takes its place. Whoever has gone over with this one already waits for this worker in vain, and
        learns of that by the end of their connections."""
        self._given_up.set()
        if self._met is not None:
            self._met.close()

    def _prepare(self) -> None:
        log.info("membership_changes", generation=self.invited.generation, world_size=self.invited.world_size)
        try:
            store = open_rendezvous(self.invited, self._channel)
            self._met = met = meet(
                self.invited,
                self._plan,
                self._channel,
                store,
                hand_over=True,
                goes_over_at=self._goes_over_at,
                given_up=self._given_up,
            )
            if self._given_up.is_set():
                met.close()
        except TrainingFailed as error:
            self.failed = error
        except (PeerLost, RuntimeError) as error:
            log.warning("membership_unchanged", generation=self.invited.generation, reason=str(error))
