"""The pool in numbers for Prometheus."""

from collections import Counter

from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.state.pool import PoolState, slow_gpus_at

MAX_JOBS = 500  # with time series of their own, so that Prometheus keeps a limited number


class PoolGauges:
    """Gauges of one pool; the series of a job end with it."""

    def __init__(self, metrics: Metrics) -> None:
        self._nodes = metrics.gauge("ef_nodes_alive", "Nodes whose heartbeats arrive")
        self._gpus = metrics.gauge("ef_gpus", "GPUs of the nodes that are alive")
        self._gpus_used = metrics.gauge("ef_gpus_used", "GPUs that carry a worker")
        self._gpus_slow = metrics.gauge("ef_gpus_slow", "GPUs on which a worker was slower than its peers")
        self._jobs = metrics.gauge_by("ef_jobs", "Jobs by phase", "phase")
        self._num_gpus = metrics.gauge_by("ef_job_gpus", "GPUs of a live job", "job_id")
        self._rate = metrics.gauge_by("ef_job_iterations_per_second", "Measured speed of a live job", "job_id")
        self._margin = metrics.gauge_by("ef_job_margin_seconds", "Deadline less expected finish", "job_id")

    def update(self, pool: PoolState, now_s: float) -> None:
        """Set all gauges from the state."""
        live = pool.live_jobs.values()
        self._nodes.set(sum(node.alive for node in pool.nodes.values()))
        self._gpus.set(pool.num_gpus)
        self._gpus_used.set(sum(len(job.gpus) for job in live))
        self._gpus_slow.set(len(slow_gpus_at(pool, now_s)))
        for gauge in (self._jobs, self._num_gpus, self._rate, self._margin):
            gauge.clear()
        for phase, count in Counter(job.phase for job in (*live, *pool.ended_jobs.values())).items():
            self._jobs.set(phase.value, count)
        for job in sorted(live, key=lambda job: job.job_id)[:MAX_JOBS]:
            self._num_gpus.set(job.job_id, len(job.gpus))
            if job.iterations_per_s and job.spec is not None:
                self._rate.set(job.job_id, job.iterations_per_s)
                remaining_s = (job.spec.max_iterations - job.iteration) / job.iterations_per_s
                if job.deadline_s is not None:
                    self._margin.set(job.job_id, job.deadline_s - now_s - remaining_s)
