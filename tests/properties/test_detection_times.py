"""For any timeout of a pool, heartbeats are frequent enough, and no worker trains that counts as lost."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.messages.limits import MAX_TIME_S
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.messages.timeouts import (
    LONGEST_S,
    MAX_HEARTBEAT_INTERVAL_S,
    MIN_CONNECT_S,
    FailureTimeouts,
    takeover_s,
)

SETTINGS = st.floats(min_value=1e-6, max_value=MAX_TIME_S)
TIMES = st.builds(FailureTimeouts, heartbeat_timeout_s=SETTINGS, stall_timeout_s=SETTINGS)
OF_MACHINES = (
    "heartbeat_interval_s",
    "bus_reply_timeout_s",
    "monitor_grace_s",
    "lease_s",
    "poll_interval_s",
    "peer_loss_notice_s",
    "propagation_s",
    "loss_confirmation_s",
)


@given(TIMES)
def test_answers_that_are_lost_cost_no_lease_and_beats_that_are_lost_no_node(times: FailureTimeouts) -> None:
    assert times.heartbeat_interval_s < times.bus_reply_timeout_s < times.lease_s < times.heartbeat_timeout_s
    attempt_s = times.bus_reply_timeout_s + times.poll_interval_s
    assert times.heartbeat_interval_s + 2 * attempt_s < times.lease_s
    assert 11 * times.heartbeat_interval_s < times.heartbeat_timeout_s


@given(TIMES, TIMES)
def test_workers_have_ended_when_their_node_is_fenced(executor: FailureTimeouts, monitor: FailureTimeouts) -> None:
    """Both count from the same heartbeat, the executor from its sending. It may still have another timeout.

    The executor checks the lease, and so does the worker. The clock of one may be slower by a half.
    """
    latest_end_s = executor.lease_s + 2 * executor.poll_interval_s
    assert 1.5 * latest_end_s < monitor.silence_s(executor.lease_s)


@given(TIMES)
def test_workers_have_ended_when_another_executor_claims_their_node(times: FailureTimeouts) -> None:
    assert 1.05 * (times.lease_s + 2 * times.poll_interval_s) < takeover_s(times.lease_s)
    assert takeover_s(times.lease_s) < times.heartbeat_timeout_s


@given(st.floats(min_value=2.0, max_value=MAX_TIME_S))
def test_a_service_is_led_again_before_a_node_could_be_lost(silence_s: float) -> None:
    leader_lease_s = FailureTimeouts(heartbeat_timeout_s=silence_s).leader_lease_s
    assert leader_lease_s + leader_lease_s / 3 < silence_s, "a standby replica checks the lease three times"


@given(TIMES)
def test_a_lost_worker_is_detected_before_its_peers_are_given_up(times: FailureTimeouts) -> None:
    stopped_s = 3 * times.heartbeat_interval_s  # two looks after it
    assert max(stopped_s, times.peer_loss_notice_s) < times.heartbeat_timeout_s < times.loss_confirmation_s
    assert times.monitor_grace_s + times.heartbeat_interval_s < times.heartbeat_timeout_s, (
        "a gap in the hearing is no silence"
    )


@given(TIMES)
def test_a_start_may_fail_and_an_exchange_outlasts_the_job_s_patience(times: FailureTimeouts) -> None:
    patience_s = min(times.stall_timeout_s, LONGEST_S)
    assert (
        3 * times.slowest_step_s < times.rendezvous_timeout_s < patience_s < times.collective_timeout_s <= 2 * LONGEST_S
    )
    assert times.connect_timeout_s < times.rendezvous_timeout_s


@given(st.floats(min_value=6.0, max_value=LONGEST_S / 2), st.floats(min_value=0.0, max_value=LONGEST_S / 2))
def test_a_start_that_is_declared_to_be_long_lengthens_the_waits_for_it_alone(stall_s: float, more_s: float) -> None:
    times = FailureTimeouts(stall_timeout_s=stall_s)
    declared = replace(times, start_timeout_s=stall_s + more_s)
    for name in ("rendezvous_wait_s", "switch_wait_s", "joining_timeout_s", "profiling_timeout_s"):
        assert getattr(declared, name) == pytest.approx(getattr(times, name) + more_s), name
    for name in ("connect_timeout_s", "turn_s", "collective_timeout_s", "further_measurement_s"):
        assert getattr(declared, name) == getattr(times, name), name
    assert declared.rendezvous_wait_s < declared.longest_start_s
    short = replace(times, start_timeout_s=stall_s / 2)
    assert short.rendezvous_wait_s < short.longest_start_s
    assert (short.late_start_s, short.switch_wait_s) == (0.0, times.switch_wait_s)


@given(TIMES)
def test_where_no_setting_is_refused_a_lost_node_is_known_before_its_jobs_count_as_standing_still(
    times: FailureTimeouts,
) -> None:
    if not times.problems():
        assert times.heartbeat_timeout_s + times.heartbeat_interval_s < times.stall_timeout_s
        assert times.leader_lease_s < times.heartbeat_timeout_s <= LONGEST_S
        assert times.connect_timeout_s >= MIN_CONNECT_S


@given(st.floats(min_value=1e-3, max_value=12 * MAX_HEARTBEAT_INTERVAL_S))
def test_who_tolerates_a_third_of_the_silence_knows_in_a_third_of_the_time(silence_s: float) -> None:
    usual = FailureTimeouts()
    times = PoolConfig(heartbeat_timeout_s=silence_s).timeouts
    for name in OF_MACHINES:
        faster = getattr(usual, name) / getattr(times, name)
        assert abs(faster - usual.heartbeat_timeout_s / silence_s) < 1e-6 * faster, name
