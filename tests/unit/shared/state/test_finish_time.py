"""When a job ends, for tables and for the margin of its promise."""

from elasticflow.shared.messages import events
from elasticflow.shared.state.finish_time import expected_finish_s
from testbed.histories import NOW_S, History
from tests.support.worker_events import rejected, running


def test_a_rejected_job_has_no_finish_and_another_one_its_end() -> None:
    job = History().then(rejected()).state.ended_jobs["a"]
    assert (job.ended_at_s is not None, expected_finish_s(job, NOW_S + 1.0)) == (True, None)
    cancelled = running().then(events.JobCancelled(job_id="a", reason="", at_s=NOW_S + 30.0)).state.ended_jobs["a"]
    assert expected_finish_s(cancelled, NOW_S + 40.0) == NOW_S + 30.0
