"""The timeouts that detect losses, each a fraction of one of two settings of the pool. Pure.

`heartbeat_timeout_s`, the longest silence of a node, sets the waits for machines, processes and messages.
`stall_timeout_s`, the longest time of a job without a step, sets the waits for users' code. `start_timeout_s`, the
longest time of a start, sets those for code that makes the model and opens the data (docs/adr/0119).
"""

from dataclasses import dataclass

from elasticflow.shared.messages.limits import DurationS, PositiveDurationS

MAX_HEARTBEAT_INTERVAL_S = 0.5  # heartbeats also report progress
MIN_LEADER_LEASE_S = 1  # NATS counts in whole seconds
MAX_LEADER_LEASE_S = 5  # longer is no safer: of two simultaneous decisions, compare-and-set rejects one
MIN_CONNECT_S = 1.0  # a connection may take so long on a busy machine
MAX_SILENCE_S = 86_400.0  # a day
CHECKPOINT_WAIT_S = 60.0  # NFS may show a new file in a folder so much later (acdirmax)
LONGEST_S = 30 * 86_400.0  # torch adds to timeouts and counts them in nanoseconds, in 64 bits


def takeover_s(lease_s: float) -> float:
    """An executor replaces the record of another one of its node id so long after it has read it. lease_s: in the
    record. The sixth more is for the end of the workers, and for clocks of different speed."""
    return lease_s * 7 / 6


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTimeouts:
    """heartbeat_timeout_s, stall_timeout_s: as in `PoolConfig`. docs/explanation/elasticity.md lists all waits.

    start_timeout_s: from the order to start workers until all of them train; 0: as long as stall_timeout_s.
    preparation_s: before its workers start, a node may need so long for what their job brings; 0: it brings nothing.
    """

    heartbeat_timeout_s: PositiveDurationS = 6.0
    stall_timeout_s: PositiveDurationS = 120.0
    start_timeout_s: DurationS = 0.0
    preparation_s: DurationS = 0.0

    # --- machines, processes, messages ---

    @property
    def heartbeat_interval_s(self) -> float:
        """The time between two heartbeats, or two checks for them: a node is lost after a dozen missing ones."""
        return min(self.heartbeat_timeout_s / 12, MAX_HEARTBEAT_INTERVAL_S)

    @property
    def bus_reply_timeout_s(self) -> float:
        """The longest wait for a reply of NATS. Two lost replies in a row do not cost a lease."""
        return self.heartbeat_timeout_s / 6

    @property
    def monitor_grace_s(self) -> float:
        """The monitor declares no node lost after so long without a reply of NATS: it may have missed heartbeats."""
        return self.heartbeat_interval_s + self.bus_reply_timeout_s

    @property
    def lease_s(self) -> float:
        """Workers continue for so long after their executor sent its last acknowledged heartbeat. The rest of
        heartbeat_timeout_s is for their end, and for clocks of different speed.
        """
        return self.heartbeat_timeout_s / 2

    def silence_s(self, lease_s: float) -> float:
        """A node without a heartbeat for so long is fenced. lease_s: in its last heartbeat; an executor may not yet
        know that the pool has a shorter one."""
        return max(self.heartbeat_timeout_s, 2 * lease_s)

    @property
    def leader_lease_s(self) -> int:
        """Another replica of a service takes over after so long. It is in whole seconds, as NATS counts."""
        return int(min(max(self.heartbeat_timeout_s / 2, MIN_LEADER_LEASE_S), MAX_LEADER_LEASE_S))

    @property
    def poll_interval_s(self) -> float:
        """The time between two checks of a clock or of an aborted wait: the longest delay of their effect."""
        return self.heartbeat_interval_s / 5

    @property
    def peer_loss_notice_s(self) -> float:
        """A worker has so long after `PeersLost` to stop waiting for a lost peer; or some steps if they take longer."""
        return self.heartbeat_timeout_s / 6

    @property
    def propagation_s(self) -> float:
        """The wait to fold an event of another node here: as long as a node without contact keeps its workers."""
        return self.lease_s

    @property
    def loss_confirmation_s(self) -> float:
        """The wait for the ledger to confirm the loss of a peer, even if its whole node is lost."""
        return self.heartbeat_timeout_s + self.propagation_s

    # --- users' code ---

    @property
    def slowest_step_s(self) -> float:
        """The time assumed for a step of unknown duration."""
        return min(self.stall_timeout_s, LONGEST_S) / 12

    @property
    def longest_start_s(self) -> float:
        """A job that does not train so long after its workers were ordered to start has failed."""
        return self.start_timeout_s or self.stall_timeout_s

    @property
    def connect_timeout_s(self) -> float:
        """The wait for a connection to a listening peer, which takes seconds on a busy machine."""
        return self._patience_s / 6

    @property
    def rendezvous_timeout_s(self) -> float:
        """The longest wait of survivors for each other. A second attempt must fit into stall_timeout_s."""
        return min(self.stall_timeout_s, LONGEST_S) / 2

    @property
    def turn_s(self) -> float:
        """The longest time that a start waits for another one, which may end its node. An attempt after it must fit
        into longest_start_s."""
        return self._patience_s / 4

    @property
    def _patience_s(self) -> float:
        """The shorter of the two limits, of which waits within one are parts."""
        return min(self.stall_timeout_s, self.longest_start_s, LONGEST_S)

    @property
    def late_start_s(self) -> float:
        """How much later than others the code of one worker may have initialized, because its job declares it."""
        return max(min(self.longest_start_s, LONGEST_S) - self._patience_s, 0.0)

    @property
    def collective_timeout_s(self) -> float:
        """The limit for one collective: longer than stall_timeout_s, so that the monitor fails the job first, with its
        reason."""
        return 2 * min(self.stall_timeout_s, LONGEST_S)

    @property
    def rendezvous_wait_s(self) -> float:
        """The longest time from the readiness of a worker until all workers of its generation are ready, some of which
        may start on a node that is not prepared yet. A second attempt must fit into longest_start_s."""
        return self._patience_s / 2 + self.late_start_s + self.preparation_s

    @property
    def switch_wait_s(self) -> float:
        """The same for a worker that trains meanwhile, and so can wait longer."""
        return self.collective_timeout_s + self.late_start_s + self.preparation_s

    @property
    def joining_timeout_s(self) -> float:
        """The longest time from the order to start a worker until it has joined those that train."""
        return self.stall_timeout_s + self.late_start_s + self.preparation_s

    @property
    def profiling_timeout_s(self) -> float:
        """The limit for a whole profiling run: a start and a few dozen steps."""
        return 5 * self.stall_timeout_s + self.late_start_s

    @property
    def further_measurement_s(self) -> float:
        """The limit for what a profiling run measures beside its speed: its virtual nodes, and parts of the batch."""
        return 5 * self.stall_timeout_s / 4

    # --- valid settings ---

    @property
    def detection_s(self) -> float:
        """A lost node is known after so long."""
        return self.heartbeat_timeout_s + self.monitor_grace_s

    @property
    def least_patience_s(self) -> float:
        """Shorter limits for users' code would count losses of nodes and slow connections as faults of the code."""
        return max(6 * MIN_CONNECT_S, self.detection_s)

    def problems(self) -> tuple[str, ...]:
        """A sentence for each setting that would detect false losses, or no losses.

        Only the configuration of an operator is checked. Ledgers and simulations may contain any value: a virtual clock
        needs no time to detect a loss.
        """
        detection_s = self.detection_s
        silence = ("heartbeat_timeout_s", self.heartbeat_timeout_s, 2.0 * MIN_LEADER_LEASE_S, MAX_SILENCE_S)
        stall = ("stall_timeout_s", self.stall_timeout_s, self.least_patience_s, LONGEST_S)
        why_no_less = {
            "heartbeat_timeout_s": "another replica takes over after half of it (leader_lease_s), and NATS counts that "
            "in whole seconds",
            "stall_timeout_s": "a connection gets a sixth of it (connect_timeout_s) and may take a second, and a lost "
            f"node must be detected, after {detection_s:g} s, before its jobs count as stalled",
        }
        found: list[str] = []
        for name, value_s, least_s, most_s in (silence, stall):
            if value_s < least_s:
                found.append(f"{name}: must be at least {least_s:g} s, not {value_s:g}: {why_no_less[name]}")
            if value_s > most_s:
                found.append(f"{name}: must be at most {most_s:.0f} s, not {value_s:g}: else losses are never detected")
        return tuple(found)
