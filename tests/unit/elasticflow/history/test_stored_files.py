"""Given what a node has stored of an ended job, then `eflow explain` and `eflow fetch` say why there is no model."""

from dataclasses import replace
from typing import Any

import pytest

from elasticflow.history.formatting import artifacts_in_words, why_no_model
from elasticflow.shared.messages.events import ArtifactsStored, JobCancelled, StoredFile, UnstoredFile
from elasticflow.shared.messages.job_spec import TORCHRUN
from elasticflow.shared.state.job import Job, Phase
from testbed.histories import NOW_S, spec
from tests.support.worker_events import running, stopped

FILE = StoredFile(path="atexit.txt", num_bytes=7, digest="a" * 64)
MODEL = StoredFile(path="i00000000000100.pt", num_bytes=7, digest="a" * 64)
LOST_MODEL = UnstoredFile(path="/data/checkpoints/a/model/i00000000000100.pt", reason="it is too large")
LOST_FILE = UnstoredFile(path="/data/checkpoints/a/files/out.bin", reason="it is a link")
LOST_FOLDER = UnstoredFile(path="/data/checkpoints/a", reason="PermissionError: no")
KEPT = (
    "its checkpoint of iteration 79 stays on node-0, in the folder checkpoints/a of the data folder; "
    "`eflow submit ... --from a` trains on from it"
)


def ended(phase: Phase = Phase.CANCELLED, entry: str = "Digits", checkpoint: int = 79) -> Job:
    return Job(
        job_id="a",
        tenant="lab",
        spec=replace(spec(), training_function=f"job:{entry}" if entry == "Digits" else f"job.py:{entry}"),
        phase=phase,
        decided_at_s=NOW_S,
        decided_sequence=1,
        checkpoint_iteration=checkpoint,
        trained_on=("node-1", "node-0"),
    )


def stored(**changes: Any) -> ArtifactsStored:
    num_unstored = len(changes.get("unstored", ()))
    return ArtifactsStored(job_id="a", due=1, node_id="node-0", num_unstored=num_unstored, at_s=NOW_S, **changes)


@pytest.mark.parametrize(
    ("event", "job", "why"),
    [
        (stored(model=MODEL, iteration=100), ended(), ""),
        (stored(), ended(checkpoint=0), "it has saved no checkpoint"),
        (stored(), ended(), f"none was stored while it trained; {KEPT}"),
        (stored(outputs=(FILE,)), ended(Phase.FAILED), f"none was stored while it trained; {KEPT}"),
        (stored(unstored=(LOST_FILE,)), ended(), f"none was stored while it trained; {KEPT}"),
        (stored(), ended(Phase.FINISHED), f"the data folder of node-0 has none; {KEPT}"),
        (stored(unstored=(LOST_FOLDER,)), ended(), "nothing could be stored: PermissionError: no"),
        (
            stored(iteration=100, unstored=(LOST_FILE, LOST_MODEL)),
            ended(Phase.FINISHED),
            f"that of iteration 100 is not stored, on node node-0: {LOST_MODEL.path}: it is too large",
        ),
        (stored(iteration=100), ended(), "that of iteration 100 is not stored, on node node-0"),
        (stored(files=(FILE,)), ended(entry=TORCHRUN), "a --torchrun script keeps its own, among its files"),
        (stored(), ended(entry=TORCHRUN), "a --torchrun script keeps its own, and none is stored"),
    ],
)
def test_a_missing_model_is_explained(event: ArtifactsStored, job: Job, why: str) -> None:
    assert why_no_model(event, job, ()) == why
    assert artifacts_in_words(event, job, ()).count("no model: ") == bool(why)
    assert why in artifacts_in_words(event, job, ())


def test_a_checkpoint_may_be_on_each_node_that_has_a_data_folder_of_its_own() -> None:
    assert "stays on node-1 or node-0, in" in why_no_model(stored(), ended(), ("node-1",))


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (stored(), "it left no files to store; no model: it has saved no checkpoint"),
        (stored(outputs=(FILE,)), "stored for `eflow fetch`: 1 file, 7 bytes; no model: it has saved no checkpoint"),
        (
            stored(unstored=(LOST_FILE,)),
            f"no model: it has saved no checkpoint; 1 not stored, on node node-0: {LOST_FILE.path}: it is a link",
        ),
        (
            stored(iteration=9, unstored=(LOST_MODEL,)),
            f"no model: that of iteration 9 is not stored, on node node-0: {LOST_MODEL.path}: it is too large",
        ),
        (
            stored(model=MODEL, iteration=100),
            "stored for `eflow fetch`: the model of iteration 100, 7 bytes",
        ),
    ],
)
def test_what_is_stored_is_one_sentence(event: ArtifactsStored, text: str) -> None:
    assert artifacts_in_words(event, ended(checkpoint=0), ()) == text


def test_the_checkpoint_of_workers_that_end_after_the_job_counts() -> None:
    history = running().then(JobCancelled(job_id="a", reason="", at_s=NOW_S + 9.0), stopped(1, "node-0", 79))
    assert history.state.ended_jobs["a"].checkpoint_iteration == 79
    history.then(stopped(1, "node-0", 99))  # repeated: these workers have ended already
    assert history.state.ended_jobs["a"].checkpoint_iteration == 79
