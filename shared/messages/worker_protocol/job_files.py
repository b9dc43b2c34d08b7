"""Names within the folder of a job's checkpoints, on which its workers and their executor agree. Pure."""

import re

from elasticflow.shared.messages.limits import MAX_ITERATIONS

ARTIFACT_FOLDER = "artifacts"  # files of the job that are stored for its user
ARTIFACT_VARIABLE = "EF_ARTIFACTS"  # its path, for users' code
WORKING_FOLDER = "files"  # in which its processes work: a copy of what was sent, and what they write there
INPUTS_FILE = "inputs.json"  # names what was copied: {"code_digest": ..., "files": {path: [bytes, changed_at_ns]}}
MODEL_FOLDER = "model"
_MODEL_FILE = re.compile(r"i([0-9]{14})(?:-([0-9a-f]{64}))?\.pt")


def model_file_name(iteration: int, digest: str) -> str:
    """Of the model after so many steps. digest: the SHA-256 of its bytes."""
    return f"i{iteration:014d}-{digest}.pt"


def iteration_of_model(file_name: str) -> int | None:
    """None if it is no such file. Users' code may give a file any name."""
    found = _MODEL_FILE.fullmatch(file_name)
    return int(found[1]) if found and int(found[1]) <= MAX_ITERATIONS else None


def digest_of_model(file_name: str) -> str:
    """The SHA-256 that the file had when it was written; "" if its name tells none."""
    found = _MODEL_FILE.fullmatch(file_name)
    return (found[2] or "") if found else ""
