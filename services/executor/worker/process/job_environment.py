"""The environment of a job in its worker: variables, and the folders that it imports from."""

import os
import sys
from dataclasses import replace
from pathlib import Path

from elasticflow.shared.messages.worker_protocol.to_worker import Assignment


def enter_environment(assignment: Assignment) -> Assignment:
    """Set the job's variables, and import from its packages before those of the node, and from its code before both.

    Returns the assignment with the folder of the training function's module as code_path. Called before users' code is
    imported, so that no module of the node has been imported in place of one of the job.
    """
    spec = assignment.spec
    os.environ.update(spec.environment)
    if assignment.packages_path:
        sys.path.insert(0, assignment.packages_path)
    if not spec.import_folder:
        return assignment
    sys.path.insert(0, assignment.code_path)  # of a workdir: what lies at its top
    return replace(assignment, code_path=str(Path(assignment.code_path) / spec.import_folder))
