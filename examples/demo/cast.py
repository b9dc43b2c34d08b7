"""The jobs of the demo and their times: they arrive while others train, so that jobs shrink and grow again."""

from dataclasses import dataclass

from elasticflow import ElasticJob
from examples.digits import Digits
from examples.text import Text
from examples.wine import Wine


@dataclass(frozen=True, slots=True, kw_only=True)
class Entrance:
    """One submission. at_s: seconds after the start; counter_offer: submit again with the offered deadline."""

    at_s: float
    job_id: str
    job: ElasticJob
    counter_offer: bool = False


def cast() -> tuple[Entrance, ...]:
    """Eight submissions: SLO, soft and best effort; one cannot be promised and takes the counter-offer."""
    return (
        Entrance(at_s=0.0, job_id="digits", job=_iterations(Digits(), 500).set_deadline(within=110)),
        Entrance(at_s=0.0, job_id="text", job=_iterations(Text(), 400).set_deadline(within=130)),
        Entrance(at_s=1.0, job_id="wine-spare", job=_iterations(Wine(), 300).set_job_class("best_effort")),
        Entrance(at_s=30.0, job_id="digits-rush", job=_iterations(Digits(), 250).set_deadline(within=55)),
        Entrance(at_s=38.0, job_id="wine", job=_iterations(Wine(), 150).set_deadline(within=70)),
        Entrance(
            at_s=44.0,
            job_id="text-at-once",
            job=_iterations(Text(), 100).set_deadline(within=6),
            counter_offer=True,
        ),
        Entrance(
            at_s=50.0,
            job_id="digits-soft",
            job=_iterations(Digits(), 150).set_deadline(within=60).set_job_class("soft"),
        ),
    )


def _iterations(job: ElasticJob, max_iterations: int) -> ElasticJob:
    return job.term_condition(max_iterations=max_iterations)
