"""Wishes, in the imperative. Users publish them; admission answers.

A command may be refused, may come twice and may come late. Facts (`events.py`) may not be refused.
"""

from dataclasses import dataclass
from typing import ClassVar

from shared.messages.job import JobSpec
from shared.messages.limits import Text, Token


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitJob:
    """Please train this by its deadline. The same job_id with the same spec is the same wish."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    spec: JobSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelJob:
    """Stop this job and free its GPUs; its last checkpoint stays."""

    VERSION: ClassVar[int] = 1
    job_id: Token
    tenant: Token
    reason: Text = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuoteDeadline:
    """Which deadline would be promised now? Asked by request, answered by `DeadlineQuoted`, never stored."""

    VERSION: ClassVar[int] = 1
    tenant: Token
    spec: JobSpec


Command = SubmitJob | CancelJob
