"""Each mistake of a user gets a clear error: cause, place, and what to do next. The pool keeps working.

One real pool for the whole module. Each test makes the mistake with the command and, if that differs, with a message
from a plain NATS client. Mistakes in files and options alone are in `tests/unit/elasticflow/cli/test_usage.py`,
failures of the bus in `tests/faults`.
"""

import asyncio
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import nats
import nats.errors
import nats.js.errors
import pytest
import pytest_asyncio

from elasticflow.shared.messages.job_spec import JobClass, JobSpec
from elasticflow.shared.state.job import Phase
from testbed.real_pool import CONFIG, POOL, RunningPool, eventually, job, running_pool
from testbed.served_page import PageClient, served_page
from testbed.terminal_user import User
from tests.support.small_disk import small_disk

pytestmark = pytest.mark.asyncio(loop_scope="module")

KNOWN, UNKNOWN = (
    0.01,
    0.02,
)  # learning rates of broken jobs, which decide whether the speed is known and the job trains at once
LIGHT_JOB = """
{first_line}
from elasticflow import ElasticJob

class Light(ElasticJob):
    hyperparameters = {{"global_batch_size": 8}}
    max_iterations = 20
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pool(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RunningPool]:
    """One node with two slots. After all tests the same processes run, a valid job trains to its end, and a replay
    reproduces every decision."""
    known = {
        spec(name, learning_rate=KNOWN).profile_key: {1: 50.0}
        for name in ("RaisesInIteration10", "Diverges", "NeverReturns")
    }
    config = replace(
        CONFIG, stall_timeout_s=8.0, max_restarts=1, curves={**CONFIG.curves, **known, "light/b8": {1: 1.0}}
    )
    folder = tmp_path_factory.mktemp("bad-input")
    async with running_pool(folder, num_nodes=1, replicas={}, config=config) as pool:
        pids = pool.pids()
        yield pool
        await pool.acknowledged(job(JobClass.SLO, max_iterations=20), "good")
        assert (await pool.ended(["good"])).ended_jobs["good"].phase is Phase.FINISHED
        assert pool.pids() == pids
        await pool.ledger()


@pytest.fixture
def user(pool: RunningPool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> User:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])  # the command adds the folders of the users' files
    (tmp_path / "light.py").write_text(LIGHT_JOB.format(first_line=""))
    return User(pool, tmp_path)


def spec(name: str, *, learning_rate: float, **changes: Any) -> JobSpec:
    """A job of examples/broken.py."""
    broken = JobSpec(
        training_function=f"examples.broken:{name}",
        global_batch_size=16,
        hyperparameters={"learning_rate": learning_rate},
        speed_neutral=("learning_rate",),  # as the class names it
        max_iterations=100,
        deadline_in_s=600.0,
    )
    return replace(broken, **changes)


def published(name: str, **changes: Any) -> dict[str, Any]:
    """The same job as fields of a message. Its speed is unknown, so it gets a profiling run."""
    return {
        "training_function": f"examples.broken:{name}",
        "global_batch_size": 16,
        "hyperparameters": {"learning_rate": UNKNOWN},
        "max_iterations": 100,
        "deadline_in_s": 600.0,
    } | changes


# --- rejected by admission -----------------------------------------------------------------------------


async def test_an_unknown_pool(user: User) -> None:
    for command in (("jobs", "--json"), ("submit", "light.py", "--deadline", "10m")):
        ran = await user.eflow(*command, "--pool", "mars")
        assert (ran.status, ran.out) == (2, "")
        assert "no pool 'mars' on the NATS server at nats://***@127.0.0.1:" in ran.err
        assert f"it has {POOL}" in ran.err
    client = await nats.connect(user.pool.url)
    with pytest.raises(nats.js.errors.NoStreamResponseError):  # the server replies that no stream stores it
        await client.jetstream().publish("ef.submit.default.mars", b"{}")
    with pytest.raises(nats.errors.NoRespondersError):
        await client.request("ef.quote.lab.mars", b"{}")
    await client.close()


async def test_a_deadline_in_the_past(user: User) -> None:
    past = ("submit", "light.py", "--deadline", "2001-01-01T00:00+00:00")
    refused = await user.eflow(*past)
    assert (refused.status, "years in the past; choose a later time" in refused.err) == (2, True)

    spec_fields = published("Diverges", deadline_in_s=None, deadline_s=978307200.0)
    said, answer = await user.publishes("SubmitJob", "late-by-hand", spec=spec_fields)
    assert (said, answer["reason"]) == ("JobRejected", "invalid")
    assert "in the past; choose a later one" in answer["explanation"]


async def test_a_quote_that_is_not_reserved(user: User) -> None:
    for deadline in ((), ("--deadline", "10m")):
        ran = await user.eflow("submit", "light.py", "--quote", "nope", *deadline)
        assert ran.status != 0
        assert "no quote 'nope' is reserved now" in ran.err
    jobs = (await user.eflow("jobs", "--all", "--json")).value
    assert "nope" not in [job["job_id"] for job in jobs]


async def test_a_batch_of_nothing(user: User) -> None:
    shown = await user.eflow("submit", "light.py", "--deadline", "10m", "--batch", "0")
    as_json = await user.eflow("submit", "light.py", "--deadline", "10m", "--batch", "-1", "--json")
    assert (shown.status, shown.out) == (2, "")
    assert shown.err == "eflow: --batch: must be greater than 0, not 0\n"
    assert (as_json.status, as_json.value) == (
        2,
        {"error": "--batch: must be greater than 0, not -1", "code": "invalid_job"},
    )
    said, answer = await user.publishes("SubmitJob", "empty-batch", spec=published("Diverges", global_batch_size=0))
    assert said == "MessageRejected"
    assert answer["problems"] == ["spec.global_batch_size: must be greater than 0, not 0"]


async def test_a_batch_larger_than_the_data_set(user: User) -> None:
    error = "global_batch_size: 512 is more than the data set's 256 samples; lower it"
    target = "examples.broken:BatchTooLarge"
    ran = await user.eflow("submit", target, "--deadline", "10m", "--name", "large")
    assert ran.status == 1
    assert f"failed    large: {error}" in ran.out
    await user.job_has_ended("large", Phase.FAILED)
    spec_fields = published("BatchTooLarge", global_batch_size=512)
    said, answer = await user.publishes("SubmitJob", "large-by-hand", spec=spec_fields)
    assert (said, answer["error"]) == ("JobFailed", error)
    await user.job_has_ended("large-by-hand", Phase.FAILED)


# --- training functions that go wrong -------------------------------------------------------------------


async def test_a_training_function_that_cannot_be_imported_by_the_client(user: User) -> None:
    (user.folder / "typo.py").write_text(LIGHT_JOB.format(first_line="import no_such_library"))
    expected = {
        "absent.py": "cannot load absent.py: there is no file",
        "no_such.module:Job": "importing no_such.module failed: ModuleNotFoundError: No module named 'no_such'\n",
        "light.py:Heavy": "light has no class Heavy; it has Light",
        "typo.py": f"No module named 'no_such_library' ({user.folder / 'typo.py'}, line 2)",
    }
    for target, said in expected.items():
        ran = await user.eflow("submit", target, "--deadline", "10m", "--json")
        assert (ran.status, ran.out) == (2, "")
        assert said in ran.err


async def test_a_training_function_that_cannot_be_imported_on_the_nodes(user: User) -> None:
    """The archive has the modules that import statements name, but none that is named at run time."""
    (user.folder / "beside.py").touch()
    first_line = 'import importlib; importlib.import_module("be" + "side")'
    (user.folder / "alone.py").write_text(LIGHT_JOB.format(first_line=first_line))
    ran = await user.eflow("submit", "alone.py", "--deadline", "10m", "--name", "alone")
    assert ran.status == 1
    assert "failed    alone: cannot import alone: ModuleNotFoundError: No module named 'beside'" in ran.out
    assert "modules that its imports name are sent with it" in ran.out
    await user.job_has_ended("alone", Phase.FAILED)
    logs = await user.eflow("logs", "alone")
    assert 'alone.py", line 2, in <module>' in logs.out

    said, answer = await user.publishes(
        "SubmitJob", "nowhere", spec=published("X", training_function="no_such.module:Job")
    )
    assert said == "JobFailed"
    assert "cannot import no_such.module: ModuleNotFoundError" in answer["error"]
    await user.job_has_ended("nowhere", Phase.FAILED)


async def test_a_training_function_that_raises_in_its_10th_iteration(user: User) -> None:
    ran = await user.eflow(
        "submit", "examples.broken:RaisesInIteration10", "--deadline", "10m", "--name", "raises", "--wait"
    )
    assert ran.status == 1
    assert re.search(r"failed +raises: ", ran.out)
    assert "RuntimeError: this is the 10th iteration (in iteration 9)" in ran.out
    said, answer = await user.publishes("SubmitJob", "profiling-raises", spec=published("RaisesInIteration10"))
    assert (said, "line 44, in train" in answer["traceback"]) == ("JobFailed", True)
    for job_id in ("raises", "profiling-raises"):
        await user.job_has_ended(job_id, Phase.FAILED)
        logs = await user.eflow("logs", job_id)
        assert logs.status == 0
        assert "Traceback (most recent call last):" in logs.out
        assert 'raise RuntimeError("this is the 10th iteration")' in logs.out
        assert f"job {job_id} failed: RuntimeError: this is the 10th iteration" in logs.err


FAILS = """
import os

import torch
from elasticflow import ElasticJob


class {name}(ElasticJob):
    hyperparameters = {{"global_batch_size": 8}}
    max_iterations = 100
    model_name = "light"

    def init_model(self):
        return torch.nn.Linear(1, 1)

    def init_dataset(self):
        return torch.utils.data.TensorDataset(torch.ones(64, 1))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch, model, optimizer):
        if self.iteration == 40:
            {ends}
        optimizer.zero_grad()
        loss = model(batch[0]).mean()
        loss.backward()
        optimizer.step()
        return loss
"""


@pytest.mark.parametrize(
    ("name", "ends", "error"),
    [
        ("raises-40", 'raise RuntimeError("the data is wrong")', "RuntimeError: the data is wrong (in iteration 40)"),
        ("exits-40", "raise SystemExit(3)", "sys.exit(3) at ends40.py:24 ends the process in iteration 40"),
        ("ends-40", "os._exit(7)", "was ended by os._exit(7) at ends40.py:24"),
    ],
)
async def test_every_screen_says_in_which_iteration_a_job_failed(user: User, name: str, ends: str, error: str) -> None:
    """It fails before its worker reports any progress by itself."""
    file = user.folder / name / "ends40.py"
    file.parent.mkdir()
    file.write_text(FAILS.format(name="Fails", ends=ends))
    ran = await user.eflow("submit", str(file), "--deadline", "10m", "--name", name, "--wait")
    assert (ran.status, f"failed  {name}: 40 iterations" in ran.out, error in ran.out) == (1, True, True), ran.out
    explained = (await user.eflow("explain", name)).out
    assert f"failed after iteration 40: {'' if name != 'ends-40' else 'crashed 2 times'}" in explained
    assert "in iteration 40" in explained
    (view,) = (view for view in (await user.eflow("jobs", "--all", "--json")).value if view["job_id"] == name)
    assert (view["iteration"], view["max_iterations"]) == (40, 100)
    (row,) = (line for line in (await user.eflow("jobs", "--all")).out.splitlines() if line.startswith(name))
    assert "40/100" in row
    with served_page("--data-dir", str(user.pool.data_dir)) as link:
        page = PageClient(link)

        def on_page() -> Any:
            status, of_job = page.get(f"/api/jobs/{name}")
            return of_job["row"] if status == 200 and of_job["row"]["explanation"] else None

        row = await eventually(on_page, "the page has read the failure")
    assert (row["iteration"], error in row["explanation"]) == (40, True)


async def test_a_loss_that_becomes_nan(user: User) -> None:
    error = "the loss is nan in iteration 10: lower the learning rate (it is 0.0"
    ran, (said, answer) = await asyncio.gather(
        user.eflow("submit", "examples.broken:Diverges", "--deadline", "10m", "--name", "nan", "--wait", "--json"),
        user.publishes("SubmitJob", "nan-by-hand", spec=published("Diverges")),
    )
    assert (ran.status, ran.value["decision"], ran.value["end"]["activity"]) == (1, "admitted", "failed")
    assert error in ran.value["end"]["explanation"]
    assert (said, error in answer["error"]) == ("JobFailed", True)
    await user.pool.ended(["nan"])
    await user.job_has_ended("nan-by-hand", Phase.FAILED)


async def test_a_training_function_that_never_returns(user: User) -> None:
    """Neither in training nor in its profiling run."""
    ran, (said, answer) = await asyncio.gather(
        user.eflow("submit", "examples.broken:NeverReturns", "--deadline", "10m", "--name", "silent", "--wait"),
        user.publishes("SubmitJob", "silent-profiling", spec=published("NeverReturns")),
    )
    assert (ran.status, said) == (1, "JobFailed")
    for error in (ran.out, answer["error"]):
        assert "s after 9 were done; does train() return?" in error
    await user.pool.ended(["silent"])
    await user.job_has_ended("silent-profiling", Phase.FAILED)
    logs = await user.eflow("logs", "silent")
    assert "does train() return? `eflow logs silent` shows where its workers were" in logs.err
    assert re.search(r"eflow: no step ended for \d+ s; the threads of this worker, newest calls first:", logs.out)
    assert re.search(r"broken\.py\", line \d+ in train", logs.out), "where it hangs"
    for job_id in ("silent", "silent-profiling"):
        told = await user.eflow("explain", job_id)
        assert re.search(r"warning: no step ended for \d+ s; a worker is at \S*broken\.py:\d+ in train", told.out), (
            told.out
        )


SLOW_START = """
import time
import torch
from torch.utils.data import TensorDataset
from elasticflow import ElasticJob

class Slow(ElasticJob):
    hyperparameters = {"global_batch_size": 8}
    max_iterations = 20
    job_class = "best_effort"

    def init_model(self):
        time.sleep(12.0)  # the pool's jobs may go on for 8 s without a step
        return torch.nn.Linear(1, 1)

    def init_dataset(self):
        return TensorDataset(torch.ones(64, 1))

    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, batch, model, optimizer):
        optimizer.zero_grad()
        loss = model(batch[0]).square().mean()
        loss.backward()
        optimizer.step()
        return loss
"""


async def test_a_model_that_takes_longer_to_make_than_the_pool_waits(user: User, tmp_path: Path) -> None:
    """The job fails with the option to raise, and trains with it: in its profiling run and afterwards."""
    (tmp_path / "slow.py").write_text(SLOW_START)
    submitted = ("submit", "slow.py", "--gpus", "1", "--wait", "--name")
    failed = await user.eflow(*submitted, "waits-too-little")
    assert failed.status == 1, failed.out
    assert "it did not start to train within" in failed.out
    assert "if it needs longer, submit it with --start-timeout, of up to 3600 s" in failed.out

    done = await user.eflow(*submitted, "waits-long-enough", "--start-timeout", "90s")
    assert done.status == 0, done.out + done.err
    job = await user.job_has_ended("waits-long-enough", Phase.FINISHED)
    assert (job.iteration, job.start_phases) == (20, ())
    told = await user.eflow("explain", "waits-long-enough")
    assert "starting: a worker is in init_model()" in told.out

    beyond = await user.eflow(*submitted, "waits-too-long", "--start-timeout", "2h")
    assert beyond.status == 1
    assert "start_timeout_s: must be 7.5 s, by which a lost node is known, to 3600 s" in beyond.out + beyond.err


async def test_the_last_lines_of_a_worker_that_died_are_reported(pool: RunningPool) -> None:
    """To users without the nodes' storage."""
    function = "testbed.user_code.tiny_jobs:Dies"
    await pool.acknowledged(job(JobClass.BEST_EFFORT, training_function=function), "dying")
    ended = (await pool.ended(["dying"])).ended_jobs["dying"]
    assert ended.phase is Phase.FAILED
    assert ended.last_lines.splitlines()[-1] == "the disk of the data set is gone"
    history = await pool.client.history("dying")
    reports = {entry.type: entry.lines[-1] for entry in history if entry.lines}
    assert reports == dict.fromkeys(("WorkerCrashed", "JobFailed"), "the disk of the data set is gone")


# --- ids ------------------------------------------------------------------------------------------------


async def test_two_submissions_with_one_id(user: User) -> None:
    """The same submission gets the same reply, also after the job has failed. Another one takes its name if it says
    so, as eflow does."""
    command = ("submit", "light.py", "--deadline", "10m", "--name", "twice", "--json")
    first, again = await user.eflow(*command), await user.eflow(*command)
    assert (first.status, first.value["decision"]) == (1, "failed")
    assert (
        first.value["error"]
        == again.value["error"]
        == "TypeError: Light lacks init_model (while the model and the data set were made)"
    )
    assert again.status == 1
    said, answer = await user.publishes("SubmitJob", "twice", spec=published("Diverges"))
    assert (said, answer["reason"]) == ("JobRejected", "duplicate")
    assert (
        "the name twice is taken by another job, submitted with other code or options and failed"
        in (answer["explanation"])
    )
    assert "twice-2 is free" in answer["explanation"]
    other = await user.eflow(*command, "--iterations", "5")
    assert other.err.startswith("twice failed; this job asks for its name\n")
    assert (other.status, other.value["decision"]) == (1, "failed")
    await user.job_has_ended("twice", Phase.FAILED)


async def test_cancelling_an_ended_or_unknown_job(user: User) -> None:
    await user.pool.acknowledged(job(JobClass.BEST_EFFORT, max_iterations=2), "done")
    await user.pool.ended(["done"])
    lab = ("--tenant", "lab")
    shown, as_json = (
        await user.eflow("cancel", "done", *lab),
        await user.eflow("cancel", "done", *lab, "--json"),
    )
    unknown = await user.eflow("cancel", "unknown", "--json")
    assert (shown.status, shown.out) == (1, "not cancelled: done: it has ended already: finished\n")
    assert (as_json.status, as_json.value["cancelled"]) == (1, False)
    assert unknown.status == 1
    assert unknown.value["explanation"] == "tenant default has no such job; `eflow jobs --all` lists them"
    said, answer = await user.publishes("CancelJob", "done")  # of another tenant
    assert (said, answer["explanation"][:32]) == ("CancelRejected", "tenant default has no such job; ")
    await user.job_has_ended("done", Phase.FINISHED)


async def test_commands_for_an_unknown_job(user: User) -> None:
    for command in ("logs", "explain"):
        ran = await user.eflow(command, "unknown", "--json")
        assert ran.status == 1
        assert "unknown job 'unknown' in pool" in ran.value["error"]
        assert ran.value["code"] == "unknown_job"


# --- files, disks, servers ------------------------------------------------------------------------------


async def test_a_file_that_is_not_a_complete_export(user: User) -> None:
    good = await user.eflow("events", "export", "good.ledger", "--json")
    assert good.status == 0
    data = (user.folder / "good.ledger").read_bytes()
    (user.folder / "cut.ledger").write_bytes(data[:-50])
    (user.folder / "changed.ledger").write_bytes(data.replace(b"node-0", b"node-9", 1))
    (user.folder / "photo.jpg").write_bytes(b"\xff\xd8\xff\xe0 a photo")
    expected = {
        "cut.ledger": f"cut off after sequence {good.value['messages']}",
        "changed.ledger": "damaged at sequence ",
        "photo.jpg": "not an export of an ElasticFlow ledger",
    }
    for file, said in expected.items():
        replayed = await user.python("elasticflow", "replay", file, "--verify", "--json")
        for ran in (replayed, await user.eflow("explain", "good", "--file", file)):
            assert (ran.status, ran.out) == (2, "")
            assert file in ran.err
            assert said in ran.err
            assert "`eflow events export FILE`" in ran.err
    unwritable = await user.eflow("events", "export", "no/such/folder.ledger")
    assert (unwritable.status, unwritable.err) == (
        2,
        "eflow: no/such/folder.ledger: No such file or directory\n",
    )


async def test_a_disk_that_is_too_full_for_checkpoints(user: User) -> None:
    with full_disk(user.pool.data_dir / "checkpoints" / "full-disk"):
        await user.pool.acknowledged(job(JobClass.SLO, max_iterations=5), "full-disk")
        failed = await user.job_has_ended("full-disk", Phase.FAILED)
    assert "the checkpoint of iteration 5 could not be written" in failed.explanation
    assert "No space left on device" in failed.explanation
    assert "free disk space on the node, then submit the job again" in failed.explanation


async def test_no_nats(user: User) -> None:
    for command in (("jobs", "--json"), ("submit", "light.py", "--deadline", "10m")):
        ran = await user.eflow(*command, NATS_URL="nats://127.0.0.1:1")
        assert (ran.status, ran.out) == (2, "")
        assert "no NATS JetStream at nats://127.0.0.1:1 " in ran.err
        assert "start one (`eflow up`), or set NATS_URL to one that runs" in ran.err
    nonsense = await user.eflow("jobs", NATS_URL="s3cret")
    service = await user.python("elasticflow.services.admission", NATS_URL="nats://s3cret@127.0.0.1:99999")
    for ran in (nonsense, service):
        assert ran.status == 2
        assert "NATS_URL must be like nats://host:4222" in ran.err
        assert "s3cret" not in ran.err + ran.out
    elsewhere = await user.eflow("jobs", EF_DATA_DIR=str(user.folder))
    assert elsewhere.status == 2
    assert f"start it with `eflow up --data-dir {user.folder}`" in elsewhere.err


async def test_a_wrong_token(user: User) -> None:
    server = user.pool.url.rpartition("@")[2]
    wrong = f"nats://guess@{server}"
    looked = await user.eflow("jobs", "--json", NATS_URL=wrong)
    submitted = await user.eflow("submit", "light.py", "--deadline", "10m", NATS_URL=wrong)
    service = await user.python("elasticflow.services.admission", NATS_URL=wrong)
    for ran in (looked, submitted, service):
        assert ran.status == 2
        assert f"NATS at nats://***@{server} rejects the credentials; check the token in NATS_URL" in ran.err
        assert "guess" not in ran.err + ran.out
    assert looked.out == submitted.out == ""


@contextmanager
def full_disk(folder: Path) -> Iterator[None]:
    """A full disk at this folder."""
    with small_disk(folder, 4):
        (folder / "ballast").write_bytes(b"x" * 4096)
        yield
