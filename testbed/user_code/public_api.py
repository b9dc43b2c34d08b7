"""A user's script that calls the whole public API. No test runs it: pyright checks it in strict mode."""

import math
from collections.abc import Mapping
from concurrent.futures import Future
from datetime import UTC, datetime, timedelta
from typing import Any, assert_never

import elasticflow
from elasticflow import ElasticJob, Scalar


class Own(ElasticJob):
    hyperparameters: Mapping[str, Scalar] = {"global_batch_size": 8, "learning_rate": 0.1, "name": ""}
    max_iterations = 100

    def init_dataset(self) -> Any:
        return range(64)


def describe() -> list[ElasticJob]:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    return [
        Own().set_hyperparameter(learning_rate=0.1, name="a").set_deadline(moment),
        Own().set_gpus(min_gpus=2, max_gpus=4).set_deadline(within=timedelta(minutes=5)),
        Own().term_condition(metric_conditions={"accuracy": (">=", 0.9)}).set_deadline(within=300),
        elasticflow.Script("train.py", "--epochs", "3").set_job_class("soft").set_deadline(within="5m"),
        elasticflow.TorchrunScript("train.py").set_job_class("best_effort"),
    ]


def submit(job: ElasticJob) -> str:
    try:
        decision: elasticflow.Decision = elasticflow.submit(job, job_id="own", timeout="1m")
    except (elasticflow.InvalidJob, elasticflow.PackagingFailed) as error:
        return str(error)
    match decision:
        case elasticflow.JobAdmitted():
            planned: list[elasticflow.ShareSegment] = [*elasticflow.segments(decision.minimum_satisfactory_share)]
            return f"{decision.job_id} {decision.deadline_s} {planned}"
        case elasticflow.JobRejected():
            offers: tuple[elasticflow.Offer, ...] = decision.offers
            return f"{decision.reason} {decision.earliest_deadline_s} {offers}"
        case elasticflow.JobCancelled() | elasticflow.JobFailed():
            return decision.job_id
        case _:
            assert_never(decision)


def submit_to_one_of_several(job: ElasticJob) -> str:
    answers: tuple[elasticflow.PoolAnswer, ...] = elasticflow.quote_of_pools(job, "east,west")
    best = [answer.pool.name for answer in answers if answer.keeps_deadline]
    try:
        chosen: elasticflow.PoolsDecision = elasticflow.submit_to_pools(job, best, job_id="own")
    except elasticflow.PoolsUnusable as error:
        return error.code
    pool: elasticflow.NamedPool = chosen.pool
    return pool.name


def operate(job_id: str) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    quoted: elasticflow.DeadlineQuoted = elasticflow.quote(Own())
    reserved = elasticflow.reserve(Own(), duration="60s")
    if isinstance(reserved, elasticflow.QuoteReserved):
        elasticflow.submit(Own().set_deadline(reserved.deadline_s), job_id=reserved.job_id)
    amended = elasticflow.amend(job_id, deadline=moment, max_iterations=10)
    amended = elasticflow.amend(job_id, within=timedelta(hours=1))
    scaled = elasticflow.scale(job_id, min_gpus=2, duration="2m")
    scaled = elasticflow.scale(job_id, max_gpus=2, until=moment)
    released = elasticflow.release(job_id)
    written: elasticflow.CheckpointReply = elasticflow.checkpoint(job_id)
    profiled: elasticflow.ProfileReply = elasticflow.profile(Own())
    cancelled: elasticflow.JobCancelled | elasticflow.CancelRejected = elasticflow.cancel(job_id)
    print(
        quoted.earliest_deadline_s,
        amended.job_id,
        scaled.job_id,
        released.job_id,
        written,
        profiled,
        cancelled,
    )


def wait(job_id: str) -> elasticflow.JobView | None:
    try:
        ended = elasticflow.wait(job_id, timeout=timedelta(hours=1))
    except elasticflow.NotEnded as error:
        print(error.timeout_s)
        return None
    except (elasticflow.UnknownJob, elasticflow.ElasticFlowError):
        return None
    return ended if ended in elasticflow.jobs() else None


def call_functions() -> list[float]:
    with elasticflow.PaddingExecutor(task_s=0.5, tenant="lab") as executor:
        future: Future[float] = executor.submit(math.sqrt, 4.0)
        return [future.result(), *elasticflow.map(math.sqrt, [1.0, 9.0])]


async def connect(job: ElasticJob) -> elasticflow.Decision:
    endpoint = elasticflow.Endpoint(nats_url="nats://host:4222", pool="default")
    async with elasticflow.Client.connect(endpoint) as client:
        return await client.submit(job.spec(), timeout=timedelta(seconds=10))
