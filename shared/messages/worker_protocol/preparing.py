"""Messages between an executor and a process that gets packages or data of one job. Pure.

The order is the first message of a forked process; it sends one reply and ends.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from elasticflow.shared.messages.job_environment import Requirements
from elasticflow.shared.messages.limits import DataUri, Text

RESULT = "result"  # the folder within that of the order


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallPackages:
    """Install packages into RESULT in this folder, which exists and is otherwise empty."""

    folder: str
    requirements: Requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchData:
    """Fetch a file or a folder into RESULT in this folder, under its own name. environment: with the job's secrets."""

    folder: str
    uri: DataUri
    environment: Mapping[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """All of it is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotPrepared:
    """It cannot be had here; error: why, with the last lines of an installer."""

    error: Text


ToPreparer = InstallPackages | FetchData
FromPreparer = Prepared | NotPrepared
