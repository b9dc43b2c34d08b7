"""What is told to one sender and never stored."""

from dataclasses import dataclass
from typing import ClassVar

from elasticflow.shared.messages.limits import DurationS, Text, TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlineQuoted:
    """Answer to `QuoteDeadline`: the earliest deadline that would be promised at at_s, if any."""

    VERSION: ClassVar[int] = 1
    earliest_deadline_s: TimeS | None
    gpu_seconds: DurationS | None = None
    explanation: Text = ""
    at_s: TimeS


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRejected:
    """Your message could not be read or understood; it is kept on the dead-letter subject. From the host."""

    VERSION: ClassVar[int] = 1
    problems: tuple[Text, ...]
