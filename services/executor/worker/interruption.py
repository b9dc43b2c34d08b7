"""How a worker is torn from peers that the ledger counts as gone, where nothing here tells of their loss.

Its connections are shut down, which a wait for small things notices. A transfer of which a part has come or gone waits
on, for as long as the group's timeout: so the thread that is stuck in one is left behind, and another goes on in its
place, from the step boundary, with the state that both have.
"""

import threading
import time
from collections.abc import Callable

import structlog

from services.executor.worker.changes import Changes
from services.executor.worker.channel import Channel
from services.executor.worker.groups import PeerLost

log = structlog.get_logger()


class Interruption(threading.Thread):
    """Waits for the news. go_on: begins a thread in the place of the one that is stuck.

    noticing_s: for a wait to notice by itself; one that is slower has another thread wait in its place.
    """

    def __init__(
        self, channel: Channel, changes: Changes, go_on: Callable[[PeerLost], None], *, noticing_s: float
    ) -> None:
        super().__init__(name="interruption", daemon=True)
        self._channel, self._changes, self._go_on = channel, changes, go_on
        self._noticing_s = noticing_s

    def run(self) -> None:
        while True:
            self._interrupt(self._channel.receive_loss().generation)

    def _interrupt(self, generation: int) -> None:
        groups = [group for group in self._changes.groups if group.generation <= generation]
        for group in groups:
            group.close()
        time.sleep(self._noticing_s)
        if any(group.leave_behind() for group in groups):
            log.warning("thread_left_behind", generation=generation)
            self._go_on(PeerLost("the ledger counts a peer as gone, and the training waits for it"))
