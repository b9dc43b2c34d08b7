"""Submissions of a benchmark: seeded, of known models, sizes and deadlines spread as in shared clusters."""

import numpy as np

from benchmarks.pipeline.cluster import CURVES
from elasticflow.shared.messages import codec
from elasticflow.shared.messages.commands import SubmitJob
from elasticflow.shared.messages.job_spec import JobSpec

SEED = 20


def submissions(num_jobs: int, *, seed: int = SEED, longest_s: float = 600.0, prefix: str = "job") -> list[SubmitJob]:
    """Jobs of 5 to longest_s seconds on one GPU (log-uniform), due in 0.5 to 1.5 times that."""
    chance = np.random.default_rng(seed)
    profiles = sorted(CURVES)
    commands: list[SubmitJob] = []
    for number in range(num_jobs):
        model_name, batch = profiles[chance.integers(len(profiles))].split("/b")
        rate = CURVES[f"{model_name}/b{batch}"][1]
        duration_s = float(np.exp(chance.uniform(np.log(5.0), np.log(longest_s))))
        spec = JobSpec(
            training_function="benchmark:OnPaper",
            model_name=model_name,
            global_batch_size=int(batch),
            max_iterations=max(1, int(duration_s * rate)),
            deadline_in_s=duration_s * float(chance.uniform(0.5, 1.5)),
        )
        commands.append(SubmitJob(job_id=f"{prefix}-{number:05}", tenant="bench", spec=spec))
    return commands


def as_bytes(command: SubmitJob, now_s: float) -> bytes:
    return codec.encode(command, id=f"submit-{command.job_id}", recorded_at_s=now_s)
