"""How soon a loss is known: every wait for a sign of life, as a part of one of two settings of the pool. Pure.

How long a node may be silent decides how long anybody waits for a machine, a process or a word; how long a job may go
without a step, how long anybody waits for users' code.
"""

from dataclasses import dataclass

from elasticflow.shared.messages.limits import PositiveDurationS

MAX_HEARTBEAT_INTERVAL_S = 0.5  # heartbeats carry progress, too
MIN_LEADER_LEASE_S = 1  # NATS counts it in whole seconds
MAX_LEADER_LEASE_S = 5  # nobody gains by a longer one: who decides at the same time loses by compare-and-set
MIN_CONNECT_S = 1.0  # on a busy machine a connection takes that
MAX_SILENCE_S = 86_400.0  # a day
LONGEST_S = 30 * 86_400.0  # torch counts a timeout in nanoseconds, in 64 bits with whatever it adds


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureTimeouts:
    """heartbeat_timeout_s, stall_timeout_s: as `PoolConfig`'s. docs/explanation/elasticity.md tells who waits for
    what.
    """

    heartbeat_timeout_s: PositiveDurationS = 6.0
    stall_timeout_s: PositiveDurationS = 120.0

    # --- machines, processes, words ---

    @property
    def heartbeat_interval_s(self) -> float:
        """Between two signs of life, and two looks for them: a dozen must be missing before a node is."""
        return min(self.heartbeat_timeout_s / 12, MAX_HEARTBEAT_INTERVAL_S)

    @property
    def bus_reply_timeout_s(self) -> float:
        """For an answer of NATS: one that is lost, and even two in a row, cost no lease."""
        return self.heartbeat_timeout_s / 6

    @property
    def monitor_grace_s(self) -> float:
        """Without an answer for longer, a heartbeat may have been missed: nobody is called silent."""
        return self.heartbeat_interval_s + self.bus_reply_timeout_s

    @property
    def lease_s(self) -> float:
        """Workers go on for so long after the ledger's end was last in sight. The rest of the silence is for their
        end,
        and for clocks that differ in speed.
        """
        return self.heartbeat_timeout_s / 2

    @property
    def leader_lease_s(self) -> int:
        """A replica that decides for a service is followed by another after so long: whole seconds, as NATS counts."""
        return int(min(max(self.heartbeat_timeout_s / 2, MIN_LEADER_LEASE_S), MAX_LEADER_LEASE_S))

    @property
    def poll_interval_s(self) -> float:
        """Between two looks at a clock, so that a lease may end as late; and for a wait to notice that its connection
        is shut."""
        return self.heartbeat_interval_s / 5

    @property
    def peer_loss_notice_s(self) -> float:
        """For a worker that was told of a loss to stop waiting for whom is lost. It may take some steps instead."""
        return self.heartbeat_timeout_s / 6

    @property
    def propagation_s(self) -> float:
        """For a fact that another node tells to be in the ledger, and known here: as long as that node's workers
        may go
        on without.
        """
        return self.lease_s

    @property
    def loss_confirmation_s(self) -> float:
        """For the ledger to count somebody as lost whom a worker misses: even a node, and the word of it."""
        return self.heartbeat_timeout_s + self.propagation_s

    # --- users' code ---

    @property
    def slowest_step_s(self) -> float:
        """A step, as long as nobody knows how long one takes."""
        return min(self.stall_timeout_s, LONGEST_S) / 12

    @property
    def connect_timeout_s(self) -> float:
        """To reach whoever listens already: on a busy machine that takes seconds."""
        return min(self.stall_timeout_s, LONGEST_S) / 6

    @property
    def start_timeout_s(self) -> float:
        """From a worker's being ready until all of its generation are: another try must fit before the job is given
        up."""
        return min(self.stall_timeout_s, LONGEST_S) / 2

    @property
    def collective_timeout_s(self) -> float:
        """In one exchange: more than the job may stand still, so that it ends with the monitor's words."""
        return 2 * min(self.stall_timeout_s, LONGEST_S)

    @property
    def profiling_timeout_s(self) -> float:
        """For a pre-run as a whole, which is a few dozen steps and a start."""
        return 5 * self.stall_timeout_s

    # --- what may be asked for ---

    def problems(self) -> tuple[str, ...]:
        """A sentence for each setting with which losses would be imagined, or never be known.

        It is for the door where operators' settings come in. Ledgers and simulations hold any: a virtual clock
        needs no
        time to notice.
        """
        hearing_s = self.heartbeat_timeout_s + self.monitor_grace_s
        silence = ("heartbeat_timeout_s", self.heartbeat_timeout_s, 2.0 * MIN_LEADER_LEASE_S, MAX_SILENCE_S)
        stall = ("stall_timeout_s", self.stall_timeout_s, max(6 * MIN_CONNECT_S, hearing_s), LONGEST_S)
        why_no_less = {
            "heartbeat_timeout_s": "another replica takes over after half of it (leader_lease_s), and NATS counts that "
            "in whole seconds",
            "stall_timeout_s": "a connection gets a sixth of it (connect_timeout_s) and may take a second, and a lost "
            f"node must be known for lost, after {hearing_s:g} s, before its jobs count as standing still",
        }
        found: list[str] = []
        for name, value_s, least_s, most_s in (silence, stall):
            if value_s < least_s:
                found.append(f"{name}: must be at least {least_s:g} s, not {value_s:g}: {why_no_less[name]}")
            if value_s > most_s:
                found.append(
                    f"{name}: must be at most {most_s:.0f} s, not {value_s:g}: else no loss is ever known"
                )
        return tuple(found)
