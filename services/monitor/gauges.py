"""The pool in numbers for Prometheus."""

from collections import Counter

from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.scheduling.allocation.allocation import IdleCause, idle_gpus
from elasticflow.shared.state.finish_time import margin_s, speed_now
from elasticflow.shared.state.pool import PoolState, num_gpus_by_type, slow_gpus_at
from elasticflow.shared.state.promise import Promise, promise_of

MAX_JOBS = 500  # with time series of their own, so that Prometheus keeps a limited number
IDLE_WINDOW_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1_000.0, 3_600.0, 14_400.0, 86_400.0)


class PoolGauges:
    """Gauges of one pool; the series of a job end with it.

    Idle time counts from update to update, each with the causes at its end.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._nodes = metrics.gauge("ef_nodes_alive", "Nodes whose heartbeats arrive")
        self._gpus = metrics.gauge("ef_gpus", "GPUs of the nodes that are alive")
        self._gpus_used = metrics.gauge("ef_gpus_used", "GPUs that carry a worker")
        self._of_type = metrics.gauge_by("ef_gpus_by_type", "The same where types differ, by GPU type", "gpu_type")
        self._used_of_type = metrics.gauge_by(
            "ef_gpus_used_by_type", "GPUs that carry a worker where types differ, by GPU type", "gpu_type"
        )
        self._gpus_slow = metrics.gauge("ef_gpus_slow", "GPUs on which a worker was slower than its peers")
        self._gpus_idle = metrics.gauge_by("ef_gpus_idle", "GPUs on which no job is placed, by cause", "cause")
        self._idle_total = metrics.counter_by("ef_idle_gpu_seconds_total", "GPU-seconds without a job", "cause")
        self._windows = metrics.histogram("ef_idle_window_seconds", "Idle windows that ended", IDLE_WINDOW_S)
        self._num_windows: int | None = None
        self._updated_at_s: float | None = None
        self._jobs = metrics.gauge_by("ef_jobs", "Jobs by phase", "phase")
        self._promises = metrics.gauge_by("ef_promises", "Promised jobs by the state of their promise", "promise")
        self._num_gpus = metrics.gauge_by("ef_job_gpus", "GPUs of a live job", "job_id")
        self._rate = metrics.gauge_by("ef_job_iterations_per_second", "Measured speed of a live job", "job_id")
        self._margin = metrics.gauge_by("ef_job_margin_seconds", "Deadline less expected finish", "job_id")
        self._at_risk = metrics.gauge_by(
            "ef_job_at_risk", "1 for a live job that may miss its deadline or has", "job_id"
        )

    def update(self, pool: PoolState, now_s: float) -> None:
        """Set all gauges from the state."""
        live = pool.live_jobs.values()
        self._nodes.set(sum(node.alive for node in pool.nodes.values()))
        self._gpus.set(pool.num_gpus)
        self._gpus_used.set(sum(len(job.gpus) for job in live))
        self._update_types(pool)
        self._gpus_slow.set(len(slow_gpus_at(pool, now_s)))
        self._update_idle(pool, now_s)
        for gauge in (self._jobs, self._promises, self._num_gpus, self._rate, self._margin, self._at_risk):
            gauge.clear()
        jobs = (*live, *pool.ended_jobs.values())
        for phase, count in Counter(job.phase for job in jobs).items():
            self._jobs.set(phase.value, count)
        promises = Counter(promise_of(job, now_s) for job in jobs)
        for promise in Promise:
            if promise is not Promise.NONE:
                self._promises.set(promise.value, promises[promise])
        for job in sorted(live, key=lambda job: job.job_id)[:MAX_JOBS]:
            self._num_gpus.set(job.job_id, len(job.gpus))
            if (rate := speed_now(job, now_s)) is not None:
                self._rate.set(job.job_id, rate)
            if (left_s := margin_s(job, now_s)) is not None:
                self._margin.set(job.job_id, left_s)
            if promise_of(job, now_s) in (Promise.AT_RISK, Promise.BROKEN):
                self._at_risk.set(job.job_id, 1)

    def _update_types(self, pool: PoolState) -> None:
        by_type = num_gpus_by_type(pool)
        nodes = (pool.nodes.get(gpu.node_id) for job in pool.live_jobs.values() for gpu in job.gpus)
        used = Counter(node.gpu_type for node in nodes if node is not None and node.alive)
        for gauge in (self._of_type, self._used_of_type):
            gauge.clear()
        for gpu_type, num_gpus in by_type.items() if len(by_type) > 1 else ():
            self._of_type.set(gpu_type, num_gpus)
            self._used_of_type.set(gpu_type, used[gpu_type])

    def _update_idle(self, pool: PoolState, now_s: float) -> None:
        idle = idle_gpus(pool)
        elapsed_s = 0.0 if self._updated_at_s is None else max(now_s - self._updated_at_s, 0.0)
        for cause in IdleCause:
            self._gpus_idle.set(cause.value, idle.get(cause, 0))
            self._idle_total.add(cause.value, idle.get(cause, 0) * elapsed_s)
        num_windows = pool.idle_windows.num_ended
        for length_s in pool.idle_windows.ended_since(num_windows if self._num_windows is None else self._num_windows):
            self._windows.observe(length_s)
        self._num_windows, self._updated_at_s = num_windows, now_s
