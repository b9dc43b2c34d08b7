"""The errors that a user expects of a command, what is printed of them, and the code with which it exits."""

import os
from typing import Any

from elasticflow.cli.command_options import AS_JSON
from elasticflow.cli.terminal_output import note, print_json
from elasticflow.errors import (
    ArtifactGone,
    InvalidJob,
    LoadNotOpened,
    LoadWasCancelled,
    NoModel,
    NotConvertible,
    NothingStored,
    NotPrintable,
    NotThere,
    TaskError,
    UnknownJob,
    UnknownQuote,
)
from elasticflow.sdk.packaging import PackagingFailed
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages.codec import Undecodable
from elasticflow.shared.messages.export import BadExport

NEGATIVE = 1  # a rejection, or the answer is no
CANNOT = 2  # wrong usage, or no connection

_NEGATIVE_ERRORS = (
    *(NotThere, UnknownJob, UnknownQuote),
    *(ArtifactGone, NothingStored, NoModel, NotConvertible),
    *(LoadNotOpened, LoadWasCancelled, TaskError, NotPrintable),
)
_EXPECTED = (ElasticFlowError, InvalidJob, PackagingFailed, BadExport, Undecodable)


def exit_code_of(error: Exception, ctx: Any) -> int | None:
    """Print an expected error in one line. None: it is a fault of ours."""
    if isinstance(error, _EXPECTED):
        note(f"eflow: {error}")
        is_negative = isinstance(error, _NEGATIVE_ERRORS)
        if ctx.meta.get(AS_JSON) and isinstance(error, (*_NEGATIVE_ERRORS, InvalidJob)):  # a program reads it, too
            print_json({"error": str(error), "code": error.code})
        return NEGATIVE if is_negative else CANNOT
    if isinstance(error, FileNotFoundError) and (folder := _deleted_folder()):
        note(f"eflow: {folder}: the current folder was deleted; change to another one")
        return CANNOT
    if isinstance(error, OSError):
        note(f"eflow: {error.filename or 'input/output'}: {error.strerror or error}")
        return CANNOT
    return None


def _deleted_folder() -> str:
    """The current folder, if it is gone."""
    try:
        os.getcwd()
    except FileNotFoundError:
        return os.environ.get("PWD", "") or "."
    return ""
