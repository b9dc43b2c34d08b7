"""What goes wrong in a simulated pool, and how often. Every draw is from one seeded generator."""

from dataclasses import dataclass

from elasticflow.shared.runtime.bus.memory.faults import Faults as BusFaults

REPEATED_WITHIN_S = 5.0  # a writer without an answer appends its event again


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """Mean seconds between faults of a kind, over the whole pool; None: never."""

    max_delay_s: float = 0.005  # of any message, in one direction
    duplicate_probability: float = 0.0  # of an event, a heartbeat and a command
    lost_answer_probability: float = 0.0  # of an append: its writer sees "maybe stored"
    storage_full_probability: float = 0.0  # of an append: nothing is stored
    failed_read_probability: float = 0.0
    failed_snapshot_probability: float = 0.0  # of writing one: stored or not
    worker_crash_every_s: float | None = None
    node_crash_every_s: float | None = None  # with all its workers, at once
    power_loss_every_s: float | None = None  # all nodes are gone at once, with or without all services
    partition_every_s: float | None = None  # a node runs on and reaches no other process
    executor_restart_every_s: float | None = None  # it is back before the monitor counts it as lost
    service_restart_every_s: float | None = None
    service_partition_every_s: float | None = None
    one_way_partition_every_s: float | None = None  # a node or service only sends, or only receives
    node_pause_every_s: float | None = None  # an executor is stopped, and goes on with what it knew
    service_pause_every_s: float | None = None
    upgrade_within_s: float | None = None  # planners begin with the previous version; each is upgraded at some time
    clock_step_every_s: float | None = None  # the clock of a node or service is set wrong
    max_clock_step_s: float = 30.0  # forward or back; every second step is below what planners tolerate
    max_outage_s: float = 20.0  # of a crashed node, a partition, a pause and a wrong clock: longer than any lease
    until_s: float = float("inf")  # no new faults from here on

    @property
    def bus(self) -> BusFaults:
        """The faults that each client of the bus meets."""
        return BusFaults(
            maybe_stored=self.lost_answer_probability,
            duplicate=self.duplicate_probability,
            max_delay_s=self.max_delay_s,
            duplicate_within_s=REPEATED_WITHIN_S,
            storage_full=self.storage_full_probability,
            failed_read=self.failed_read_probability,
            failed_object=self.failed_snapshot_probability,
        )


NO_FAULTS = Faults()
MANY_FAULTS = Faults(
    max_delay_s=0.3,
    duplicate_probability=0.1,
    lost_answer_probability=0.02,
    storage_full_probability=0.02,
    failed_read_probability=0.02,
    failed_snapshot_probability=0.2,
    worker_crash_every_s=25.0,
    node_crash_every_s=60.0,
    partition_every_s=60.0,
    executor_restart_every_s=60.0,
    service_restart_every_s=5.0,
    service_partition_every_s=60.0,
    one_way_partition_every_s=60.0,
    node_pause_every_s=60.0,
    service_pause_every_s=60.0,
    clock_step_every_s=60.0,
)
