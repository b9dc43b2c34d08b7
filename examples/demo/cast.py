"""The jobs of the demo and their times: they arrive while others train, so that jobs shrink and grow again.

Arrivals follow from progress, and deadlines from what is measured on this machine: a slow or busy one admits the same
jobs.
"""

from dataclasses import dataclass

from elasticflow import ElasticJob
from examples.digits import Digits
from examples.text import Text
from examples.wine import Wine

REJECTED_ON_PURPOSE = "text-at-once"


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """One submission.

    after: its moment, by the progress of the first job: 0.5 is when that has trained half of its iterations.
    within: its deadline, in quotes of its own at that moment: 1.0 is the earliest deadline; 0.0: it has none.
    """

    after: float
    job_id: str
    job: ElasticJob
    within: float = 0.0


def cast() -> tuple[Entrance, ...]:
    """Seven submissions: SLO, soft and best effort; one cannot be promised, and takes the counteroffer."""
    soft = Digits().set_job_class("soft")
    return (
        Entrance(after=0.0, job_id="digits", job=_iterations(Digits(), 500), within=2.5),
        Entrance(after=0.02, job_id="text", job=_iterations(Text(), 400), within=2.5),
        Entrance(after=0.05, job_id="wine-spare", job=_iterations(Wine(), 300).set_job_class("best_effort")),
        Entrance(after=0.35, job_id="digits-rush", job=_iterations(Digits(), 250), within=2.0),
        Entrance(after=0.5, job_id="wine", job=_iterations(Wine(), 150), within=2.5),
        Entrance(after=0.6, job_id=REJECTED_ON_PURPOSE, job=_iterations(Text(), 100), within=0.4),
        Entrance(after=0.7, job_id="digits-soft", job=_iterations(soft, 150), within=2.5),
    )


def _iterations(job: ElasticJob, max_iterations: int) -> ElasticJob:
    return job.term_condition(max_iterations=max_iterations)
