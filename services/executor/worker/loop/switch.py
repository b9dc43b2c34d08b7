"""Switches a worker to another generation without a stop: prepared beside the training, done at a step boundary.

New workers start, all workers run a rendezvous, and their groups connect, all in the background. Each worker reports at
every step boundary whether it is ready, and when all are, all switch. If the preparation fails, for example because a
joining worker died, the old generation trains on until its executor sends another `PrepareSwitch`.
"""

import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from elasticflow.services.executor.worker.engine.step_agreement import Agreement
from elasticflow.services.executor.worker.engine.trainer import Trainer
from elasticflow.services.executor.worker.group.compatibility_digest import CompatibilityDigest, compatibility_digest
from elasticflow.services.executor.worker.group.groups import Group
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.rendezvous import (
    RendezvousResult,
    RendezvousSpecification,
    join_rendezvous,
    open_rendezvous,
    rendezvous_specification,
    switch_specification,
)
from elasticflow.services.executor.worker.group.rendezvous_store import RendezvousStore
from elasticflow.services.executor.worker.group.state_transfer import StateTransfer
from elasticflow.services.executor.worker.interface import TrainingFailed
from elasticflow.services.executor.worker.process.channel import Channel
from elasticflow.services.executor.worker.process.device import DeviceMemoryExceeded, release_memory
from elasticflow.shared.messages.measurements import ResizeTimeline
from elasticflow.shared.messages.worker_protocol.from_worker import Interrupted, Started, Switched
from elasticflow.shared.runtime.process.logs import log

_POLL_S = 0.002
_STEPS_TO_AGREE = 2  # that all are ready: the present step, and the next


@dataclass(frozen=True, slots=True)
class _UnreportedSwitch:
    """A switch before its first step. specification: None for a joining worker."""

    transfer: StateTransfer
    began_s: float
    specification: RendezvousSpecification | None


class GenerationSwitcher:
    """Trains one worker step by step, and switches it between generations.

    transfer: how this worker received the state from training workers; None if it started with all others. began_s:
    monotonic start of this worker.
    """

    def __init__(self, trainer: Trainer, channel: Channel, transfer: StateTransfer | None, *, began_s: float) -> None:
        self._trainer, self._channel = trainer, channel
        self._digest = compatibility_digest(
            trainer.function,
            trainer.spec,
            trainer.model,
            trainer.optimizer,
            trainer.additional.objects,
            trainer.dataset.samples_digest,
        )
        self._preparation: SwitchPreparation | None = None
        self._switching_to: RendezvousResult | None = None
        self._unreported = None if transfer is None else _UnreportedSwitch(transfer, began_s, None)
        self._is_waiting = False  # between two steps, for other workers
        self.has_left = False

    def step(self, *, stop: bool, wants_checkpoint: Callable[[], bool]) -> Agreement:
        """One step. Returns what all workers agree on at its end."""
        self._poll()
        first, began_s = self._trainer.iteration, time.monotonic()
        preparation = self._preparation
        ready = preparation.specification if preparation and preparation.ready_generation else None
        agreement = self._trainer.step(stop=stop, wants_checkpoint=wants_checkpoint, next_generation=ready)
        if self._unreported is not None:
            self._report(self._unreported, first, began_s)
            self._unreported = None
        return agreement

    def _poll(self, wait_s: float = 0.0) -> None:
        if (command := self._channel.newest_prepare_switch(wait_s)) is not None:
            present = rendezvous_specification(self._trainer.assignment, self._trainer.device)
            if self._preparation is not None:
                self._preparation.abort()
            self._preparation = SwitchPreparation(
                switch_specification(present, command),
                self._digest,
                self._channel,
                self._switch_iteration,
                self._tell_place if self._trainer.dataset.stream is not None else None,
            )
        if self._preparation is not None and self._preparation.failed is not None:
            raise self._preparation.failed

    def _switch_iteration(self) -> int:
        """Steps done at the switch if all workers are ready now."""
        return self._trainer.iteration + (0 if self._is_waiting else _STEPS_TO_AGREE)

    def _tell_place(self, store: RendezvousStore) -> None:
        stream = self._trainer.dataset.stream
        assert stream is not None
        stream.tell(store, self._trainer.iteration)

    @property
    def groups(self) -> Iterator[Group]:
        """All groups in which this worker may wait for peers, now or next."""
        if (group := self._trainer.members.group) is not None:
            yield group
        if (switching_to := self._switching_to) is not None:
            yield from switching_to.groups
        if (preparation := self._preparation) is not None and preparation.ready_generation:
            yield from preparation.result.groups

    def switch(self) -> None:
        """Switch together with all other workers. A worker that is not in the new generation `has_left` afterwards."""
        preparation, self._preparation = self._preparation, None
        assert preparation is not None, "this worker reported that it was ready"
        self._switching_to = preparation.result
        transfer = self._trainer.switch(preparation.specification, preparation.result)
        self._switching_to = None
        self._is_waiting = False
        self._unreported = _UnreportedSwitch(transfer, preparation.began_s, preparation.specification)
        self.has_left = not preparation.specification.stays

    def report_interrupted(self, cause: PeerLost | DeviceMemoryExceeded) -> None:
        """This worker is at a step boundary; the failed step is rolled back."""
        log.warning("interrupted", iteration=self._trainer.iteration, reason=str(cause))
        size = 0
        if isinstance(cause, DeviceMemoryExceeded):
            size = cause.micro_batch_size
            release_memory(self._trainer.device)
        self._channel.send(Interrupted(iteration=self._trainer.iteration, micro_batch_size=size))

    def await_switch(self) -> bool:
        """Wait for the next generation after the loss of a peer or exceeded memory, and switch to it.

        Returns False if this worker must stop instead. Raises PeerLost if another peer is lost meanwhile.
        """
        self._is_waiting = True
        while not self._channel.stop_requested:
            self._poll(wait_s=_POLL_S)
            if self._preparation is not None and self._preparation.ready_generation:
                self.switch()
                return True
        return False

    def _report(self, switch: _UnreportedSwitch, first: int, step_began_s: float) -> None:
        """Report a switch after the first step in the new generation."""
        timeline = ResizeTimeline(
            prepare_s=max(switch.transfer.began_s - switch.began_s, 0.0),
            stop_s=step_began_s - switch.transfer.began_s,
            first_step_s=time.monotonic() - step_began_s,
            bytes_moved=switch.transfer.num_bytes,
        )
        if switch.specification is None:
            self._channel.send(Started(iteration=first, resize=timeline))
        else:
            generation, rank = switch.specification.plan.generation, switch.specification.rendezvous_rank
            self._channel.send(Switched(generation=generation, rank=rank, iteration=first, resize=timeline))
        log.info(
            "generation_switched",
            iteration=first,
            world_size=self._trainer.members.world_size,
            prepare_s=round(timeline.prepare_s, 3),
            stop_s=round(timeline.stop_s, 4),
            bytes_moved=timeline.bytes_moved,
        )


class SwitchPreparation:
    """Prepares another generation in a thread of its own, which starts at once."""

    def __init__(
        self,
        specification: RendezvousSpecification,
        digest: CompatibilityDigest,
        channel: Channel,
        switch_iteration: Callable[[], int],
        before_arrival: Callable[[RendezvousStore], None] | None,
    ) -> None:
        self._switch_iteration, self._before_arrival = switch_iteration, before_arrival
        self.specification = specification
        self.failed: TrainingFailed | None = None
        self._digest = digest
        self.began_s = time.monotonic()
        self._channel = channel
        self._result: RendezvousResult | None = None
        self._aborted = threading.Event()
        threading.Thread(target=self._prepare, name="switch-preparation", daemon=True).start()

    @property
    def ready_generation(self) -> int:
        """The prepared generation, 0 until it is ready."""
        return 0 if self._result is None else self.specification.plan.generation

    @property
    def result(self) -> RendezvousResult:
        """The result of the rendezvous, once it is ready."""
        assert self._result is not None
        return self._result

    def abort(self) -> None:
        """Another preparation replaces this one. A worker that has already switched notices by the end of its
        connections."""
        self._aborted.set()
        if self._result is not None:
            self._result.close()

    def _prepare(self) -> None:
        generation = self.specification.plan.generation
        log.info("switch_preparing", generation=generation, world_size=self.specification.plan.world_size)
        try:
            store = open_rendezvous(self.specification, self._channel)
            self._result = result = join_rendezvous(
                self.specification,
                self._digest,
                self._channel,
                store,
                transfer_state=True,
                switch_iteration=self._switch_iteration,
                before_arrival=self._before_arrival,
                aborted=self._aborted,
            )
            if self._aborted.is_set():
                result.close()
        except TrainingFailed as error:
            self.failed = error
        except (PeerLost, RuntimeError) as error:
            log.warning("switch_preparation_failed", generation=generation, reason=str(error))
