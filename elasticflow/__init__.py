"""Serverless, deadline-guaranteed, elastic training: describe a job, get a promise, never count GPUs.

    import elasticflow

    class Digits(elasticflow.ElasticJob): ...

Importing this imports no torch.
"""

from elasticflow.job import ElasticJob
from shared.messages.job import JobClass, JobSpec, Scalar

__all__ = ["ElasticJob", "JobClass", "JobSpec", "Scalar"]
