"""The ledger on which the page is measured."""

from benchmarks.page.ledgers import large_history
from testbed.page_ledger import records

NOW_S = 1_800_000_000.0


def test_the_large_ledger_has_so_many_messages_and_live_jobs_and_goes_on_in_time() -> None:
    history = large_history(10_000, 100, NOW_S)
    assert 0.97 * 10_000 < len(history.messages) <= 10_000
    jobs = history.state.live_jobs.values()
    assert (len(jobs), len(history.state.ended_jobs) > 200) == (100, True)
    assert sum(job.iteration > 0 for job in jobs) > 90
    assert all(job.deadline_s is not None and job.deadline_s > NOW_S for job in jobs)
    held = [gpu for job in jobs for gpu in job.gpus]
    assert len(set(held)) == len(held)
    assert all(gpu.gpu_index < history.state.nodes[gpu.node_id].num_gpus for gpu in held)
    times = [record.stored_at_s for record in records(history)]
    assert times == sorted(times)
    assert times[-1] <= NOW_S
