"""Who appears when: jobs that arrive while others train, so that everybody has to make room and gets it back."""

from dataclasses import dataclass

from elasticflow import ElasticJob
from examples.digits import Digits
from examples.text import Text
from examples.wine import Wine


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """One submission. at_s: seconds after the curtain; counter_offer: submit again with the offered deadline."""

    at_s: float
    job_id: str
    job: ElasticJob
    counter_offer: bool = False


def cast() -> tuple[Entrance, ...]:
    """Eight submissions: SLO, soft and best effort; one cannot be promised and takes the counter-offer."""
    return (
        Entrance(
            at_s=0.0, job_id="digits", job=Digits().term_condition(max_iterations=200).set_deadline(within=75)
        ),
        Entrance(
            at_s=0.0, job_id="text", job=Text().term_condition(max_iterations=120).set_deadline(within=110)
        ),
        Entrance(at_s=1.0, job_id="wine-best-effort", job=_best_effort(Wine(), 500)),
        Entrance(
            at_s=30.0,
            job_id="digits-rush",
            job=Digits().term_condition(max_iterations=120).set_deadline(within=30),
        ),
        Entrance(
            at_s=38.0, job_id="wine", job=Wine().term_condition(max_iterations=150).set_deadline(within=45)
        ),
        Entrance(
            at_s=45.0,
            job_id="text-impossible",
            job=Text().term_condition(max_iterations=100).set_deadline(within=8),
            counter_offer=True,
        ),
        Entrance(
            at_s=52.0,
            job_id="digits-soft",
            job=Digits().term_condition(max_iterations=80).set_deadline(within=40).set_job_class("soft"),
        ),
    )


def _best_effort(job: ElasticJob, max_iterations: int) -> ElasticJob:
    return job.term_condition(max_iterations=max_iterations).set_job_class("best_effort")
