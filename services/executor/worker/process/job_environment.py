"""The environment of a job in its worker: variables, secrets, and the folders that it imports from."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.worker_protocol.to_worker import Assignment

_secret_values: list[str] = []  # of this process, which serves one job


def enter_environment(assignment: Assignment) -> Assignment:
    """Set the job's variables, and import from its packages before those of the node, and from its code before both.

    Returns the assignment without its secrets, and with the folder of the training function's module as code_path.
    Called before users' code is imported, so that no module of the node is imported in place of one of the job.
    """
    spec = assignment.spec
    os.environ.update(spec.environment)
    os.environ.update(assignment.secrets)
    _secret_values.extend(assignment.secrets.values())
    if assignment.packages_path:
        sys.path.insert(0, assignment.packages_path)
    if assignment.secrets:
        assignment = replace(assignment, secrets={})
    if not spec.import_folder:
        return assignment
    sys.path.insert(0, assignment.code_path)  # of a workdir: what lies at its top
    return replace(assignment, code_path=str(Path(assignment.code_path) / spec.import_folder))


def without_own_secrets(text: str) -> str:
    """The text of an error, which the ledger keeps, without values of the job's secrets."""
    return without_secrets(text, _secret_values)
