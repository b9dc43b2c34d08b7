"""Whatever silence a pool tolerates: signs of life are frequent enough, and nobody trains on who is counted as lost."""

from hypothesis import given
from hypothesis import strategies as st

from shared.messages.cluster import PoolConfig
from shared.messages.detection import LONGEST_S, MAX_BEAT_S, MIN_CONNECT_S, DetectionTimes
from shared.messages.limits import MAX_TIME_S

SETTINGS = st.floats(min_value=1e-6, max_value=MAX_TIME_S)
TIMES = st.builds(DetectionTimes, heartbeat_timeout_s=SETTINGS, stall_timeout_s=SETTINGS)
OF_MACHINES = ("beat_s", "answer_s", "deaf_s", "lease_s", "look_s", "notice_s", "word_s", "missed_s")


@given(TIMES)
def test_answers_that_are_lost_cost_no_lease_and_beats_that_are_lost_no_node(times: DetectionTimes) -> None:
    assert times.beat_s < times.answer_s < times.lease_s < times.heartbeat_timeout_s
    assert times.beat_s + 2 * times.answer_s < times.lease_s
    assert 11 * times.beat_s < times.heartbeat_timeout_s


@given(TIMES)
def test_workers_have_ended_when_their_node_is_counted_as_lost(times: DetectionTimes) -> None:
    """The last heartbeat that was heard may be older by a beat than the last sight of the ledger."""
    latest_end_s = (
        times.beat_s + times.lease_s + 2 * times.look_s
    )  # the executor looks, and so does the worker
    assert latest_end_s < times.heartbeat_timeout_s


@given(st.floats(min_value=2.0, max_value=MAX_TIME_S))
def test_a_service_is_led_again_before_a_node_could_be_lost(silence_s: float) -> None:
    leader_s = DetectionTimes(heartbeat_timeout_s=silence_s).leader_s
    assert leader_s + leader_s / 3 < silence_s, "whoever stands by looks three times in a lease"


@given(TIMES)
def test_whoever_is_missed_is_found_out_before_those_who_miss_it_are_given_up(times: DetectionTimes) -> None:
    stopped_s = 3 * times.beat_s  # two looks after it
    assert max(stopped_s, times.notice_s) < times.heartbeat_timeout_s < times.missed_s
    assert times.deaf_s + times.beat_s < times.heartbeat_timeout_s, "a gap in the hearing is no silence"


@given(TIMES)
def test_a_start_may_fail_and_an_exchange_outlasts_the_job_s_patience(times: DetectionTimes) -> None:
    patience_s = min(times.stall_timeout_s, LONGEST_S)
    assert 3 * times.slowest_step_s < times.start_s < patience_s < times.collective_s <= 2 * LONGEST_S
    assert times.connect_s < times.start_s


@given(TIMES)
def test_where_no_setting_is_refused_a_lost_node_is_known_before_its_jobs_count_as_standing_still(
    times: DetectionTimes,
) -> None:
    if not times.problems():
        assert times.heartbeat_timeout_s + times.beat_s < times.stall_timeout_s
        assert times.leader_s < times.heartbeat_timeout_s <= LONGEST_S
        assert times.connect_s >= MIN_CONNECT_S


@given(st.floats(min_value=1e-3, max_value=12 * MAX_BEAT_S))
def test_who_tolerates_a_third_of_the_silence_knows_in_a_third_of_the_time(silence_s: float) -> None:
    usual = DetectionTimes()
    times = PoolConfig(heartbeat_timeout_s=silence_s).detection
    for name in OF_MACHINES:
        faster = getattr(usual, name) / getattr(times, name)
        assert abs(faster - usual.heartbeat_timeout_s / silence_s) < 1e-6 * faster, name
