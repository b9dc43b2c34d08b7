"""A failing job reports its cause, and all of its workers end."""

from dataclasses import replace

import pytest

from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.services.executor.worker.checkpoint.store import CheckpointStore
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Alive,
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Profiled,
    Progressed,
    Started,
    Warned,
)
from testbed.worker_nodes import Lineup
from tests.support.rings import few_daily

pytestmark = pytest.mark.asyncio(loop_scope="session")

NO_SUCH_GPU = 1000


async def failure_of(node, spec, *, job_id: str = "", **launch) -> tuple[Failed, str]:
    """The job's failure and rank 0's log, once all of its workers have ended."""
    job_id = job_id or node.new_job_id()
    workers = await node.launch(spec, job_id=job_id, **launch)
    failed = await workers.first(Failed)
    codes = {exit_.code for exit_ in (await workers.ended()).values()}
    assert ExitCode.FAILED in codes
    assert codes <= {ExitCode.FAILED, ExitCode.PEER_LOST}
    return failed, node.log_of(job_id, generation=launch.get("generation", 1))


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_exception_of_the_user_is_reported_with_its_traceback(node, spec_of, num_workers):
    spec = spec_of("examples.broken:RaisesInIteration10", max_iterations=100)
    failed, log = await failure_of(node, spec, num_workers=num_workers)
    assert failed.error == "RuntimeError: this is the 10th iteration (in iteration 9)"
    assert "examples/broken.py" in failed.traceback
    assert failed.traceback in log


@pytest.mark.parametrize("changed", few_daily(["dataset", "self"], 1))
async def test_a_class_that_changes_what_its_processes_that_read_have_is_refused(node, spec_of, changed):
    failed, _ = await failure_of(node, spec_of("ChangesData", max_iterations=100, hyperparameters={"changed": changed}))
    assert f"train() or evaluate() changed {changed}.scale, which the processes that read the data do not see" in (
        failed.error
    )


async def test_nan_loss_names_the_iteration_and_a_remedy(node, spec_of):
    spec = spec_of("examples.broken:Diverges", max_iterations=100)
    failed, _ = await failure_of(node, spec, num_workers=2)
    assert "the loss is nan in iteration 10" in failed.error
    assert "lower the learning rate (it is 0.01)" in failed.error


async def test_no_checkpoint_has_the_state_after_a_loss_that_is_not_finite(node, spec_of):
    """Workers agree on a step's loss with the next step, but before a checkpoint at once."""
    job_id = node.new_job_id()
    spec = spec_of("examples.broken:Diverges", max_iterations=100)
    failed, _ = await failure_of(node, spec, job_id=job_id, num_workers=2, checkpoint_every_s=1e-6)
    assert "the loss is nan in iteration 10" in failed.error
    newest = CheckpointStore(node.checkpoints_of(job_id), generation=1000).newest()
    assert newest is not None
    assert 0 < newest["iteration"] <= 10


@pytest.mark.parametrize(
    ("function", "error"),
    [
        ("no_such_module:Job", "cannot import no_such_module: ModuleNotFoundError"),
        ("training_functions:NoSuchClass", "module training_functions has no class NoSuchClass"),
        ("training_functions:Numbered", "lacks init_model, init_dataset"),
        ("training_functions:ReturnsText", "train() returned str: return the loss"),
        ("training_functions:NoModel", "init_model() must return a torch.nn.Module, not None"),
        (
            "training_functions:TwoOptimizers",
            "must return a torch.optim.Optimizer, not a tuple; return one, keep the others in attributes",
        ),
        ("training_functions:Exits", "sys.exit() at training_functions.py:"),
        ("training_functions:Endless", "must return a map-style data set with a length"),
    ],
)
async def test_unusable_training_function_is_named(node, spec_of, function, error):
    failed, _ = await failure_of(node, spec_of(function))
    assert error in failed.error


@pytest.mark.parametrize("purpose", ["train", "profile"])
async def test_batch_larger_than_the_data_set_names_both(node, spec_of, purpose):
    failed, _ = await failure_of(node, spec_of("Points", global_batch_size=64), purpose=purpose)
    assert failed.error == "global_batch_size: 64 is more than the data set's 50 samples; lower it"


async def test_more_workers_than_samples_in_a_batch(node, spec_of):
    failed, _ = await failure_of(node, spec_of("Points", global_batch_size=1), num_workers=2)
    assert failed.error.startswith("2 workers cannot share a global batch of 1 samples: increase global_batch_size")


# A job whose model name has a known speed has no profiling run: it is checked when it begins to train.
CHECKED = pytest.mark.parametrize(("purpose", "model_name"), [("profile", ""), ("train", "known")])


@CHECKED
@pytest.mark.parametrize("num_workers", [1, 2])
async def test_hidden_state_of_the_model_is_found_in_the_first_step(node, spec_of, num_workers, purpose, model_name):
    spec = spec_of("HiddenState", model_name=model_name, max_iterations=100)
    failed, _ = await failure_of(node, spec, purpose=purpose, num_workers=num_workers)
    assert failed.error.startswith("the same step gave another loss when it was repeated: the job keeps ")
    assert "model.0.running from step to step, which is no state of the job" in failed.error
    assert "register_buffer()" in failed.error


async def test_a_model_that_differs_between_workers_is_found_in_the_profiling_run(node, spec_of):
    failed, _ = await failure_of(node, spec_of("UnseededModel"), purpose="profile", num_workers=2)
    assert failed.error.startswith("the workers' states differ after iteration 0")
    assert "Let init_model() draw random numbers only from torch" in failed.error


async def test_a_parameter_without_gradient_in_the_fast_mode_is_named(node, spec_of):
    failed, _ = await failure_of(node, spec_of("UnusedAndFast"), purpose="profile", num_workers=2)
    assert failed.error == (
        "the parameter unused.weight has no gradient in iteration 0, which the fast mode waits for: "
        'set find_unused_parameters = True, or reproducible = "bitwise"'
    )
    workers = await node.launch(spec_of("UnusedFoundAndFast"), job_id=node.new_job_id(), num_workers=2)
    await workers.first(Finished)
    await workers.ended()


@CHECKED
async def test_a_schedule_that_steps_by_itself_is_found_in_the_first_step(node, spec_of, purpose, model_name):
    settings = {"by_iteration": False}
    spec = spec_of("ScheduleInAttribute", hyperparameters=settings, model_name=model_name, max_iterations=100)
    failed, _ = await failure_of(node, spec, purpose=purpose)
    assert failed.error.startswith("train() steps the schedule in self.schedule for every part of a batch")


@pytest.mark.parametrize("function", ["Scaled", "ScaledAndFast"])
async def test_a_scaler_that_is_no_state_is_refused_in_the_first_steps(node, spec_of, function):
    failed, _ = await failure_of(node, spec_of(function, hyperparameters={"scales": True}), num_workers=2)
    assert failed.error.startswith("train() uses a GradScaler that is no state of the job")
    assert "let stateful() return it" in failed.error
    spec = spec_of(function, hyperparameters={"scales": False}, max_iterations=3)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Finished)
    await workers.ended()


@pytest.mark.parametrize("function", ["HarmlessCache", "Stateful", "Fast", "ScheduleInAttribute"])
async def test_a_repeatable_step_is_profiled(node, spec_of, function):
    job_id = node.new_job_id()
    spec = spec_of(function, hyperparameters={"by_iteration": True})
    workers = await node.launch(spec, job_id=job_id, num_workers=2, purpose="profile")
    await workers.first(Profiled)
    await workers.ended()
    assert "step_not_repeatable" not in node.log_of(job_id)
    assert not workers.all_of(Warned)


async def test_a_backward_pass_that_does_not_repeat_fails_on_a_cpu_slot(node, spec_of):
    """The first loss is the same: only gradients and parameters tell. On a GPU it is a warning."""
    failed, _ = await failure_of(node, spec_of("OtherGradients"), purpose="profile")
    assert failed.error.startswith("the same step gave another gradient of ")
    assert "such as a file, an iterator or an environment variable" in failed.error


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("function", ["Points", "patterns:NonPersistentBuffer"])
async def test_a_repeated_first_step_counts_once(node, spec_of, num_workers, function):
    """With momentum, which the first step creates, and buffers, which it changes."""
    ends = []
    for model_name in ("", "known"):
        spec = spec_of(function, max_iterations=100, model_name=model_name)
        workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=num_workers)
        ends.append(await workers.first(Finished))
        await workers.ended()
    assert ends[0] == ends[1]
    assert ends[0].iteration == 100


async def test_a_short_job_repeats_no_step(node, spec_of):
    """Its promise has no time for another step: its hidden state stays undetected."""
    spec = spec_of("HiddenState", max_iterations=99, model_name="known")
    workers = await node.launch(spec, job_id=node.new_job_id())
    assert (await workers.first(Finished)).iteration == 99
    await workers.ended()


OTHER = {"hyperparameters": {"learning_rate": 0.3}, "seed": 7}


async def test_an_incompatible_worker_is_named_before_any_tensor_travels(node, spec_of):
    """As on a node with another copy of the code: here with another model, and another number of samples."""
    other = spec_of("WiderWithFewerSamples", **OTHER)
    workers = await node.launch(
        spec_of("Points"), job_id=node.new_job_id(), num_workers=2, lineup=Lineup(spec_by_rank={1: other})
    )
    failed = await workers.first(Failed, 1)
    assert failed.error.startswith("this worker differs from rank 0 of its rendezvous: training function: ")
    for difference in (
        "hyperparameters: [",
        "seed: 7 here, 0 there",
        "samples: 40 here, 50 there",
        "parameters: 4 #",
    ):
        assert difference in failed.error
    assert not workers.all_of(Started)
    for worker in workers.workers.values():
        worker.kill()
    await workers.ended()


@pytest.mark.parametrize("members", [[0, None], [None, 0]], ids=str)
async def test_an_incompatible_joining_worker_fails_the_job(node, spec_of, members):
    """Either side may notice first."""
    spec = spec_of("Points", max_iterations=10**9, hyperparameters={"step_s": 0.002})
    before = await node.launch(spec, job_id=node.new_job_id())
    await before.first(Progressed)
    before.workers[0].assignment = replace(before.workers[0].assignment, spec=spec_of("Points", **OTHER))
    after = await node.switch_generation(before, members)
    finds_out = after if members[1] is None else before
    assert "seed: " in (await finds_out.first(Failed)).error
    for worker in {*before.workers.values(), *after.workers.values()}:
        worker.kill()
    await before.ended()
    await after.first(Exited, members.index(None))


async def test_job_that_never_returns_is_alive_without_progress(node, spec_of):
    spec = spec_of("examples.broken:NeverReturns", max_iterations=100)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    await workers.first(Started)
    while not any(alive.iteration == 9 for alive in workers.all_of(Alive)):
        await workers.next_event()
    for worker in workers.workers.values():
        worker.kill()
    assert {exit_.signal for exit_ in (await workers.ended()).values()} == {9}


async def test_full_disk_only_skips_periodic_checkpoints(node, spec_of):
    job_id = node.new_job_id()
    spec = spec_of("DiskFull", hyperparameters={"failures": 1})
    workers = await node.launch(spec, job_id=job_id, checkpoint_every_s=1e-6)
    assert (await workers.first(Finished)).iteration == 10
    assert (await workers.first(CheckpointWritten)).iteration > 1
    await workers.ended()
    assert "No space left on device" in node.log_of(job_id)


async def test_full_disk_at_the_last_checkpoint_fails_with_an_explanation(node, spec_of):
    spec = spec_of("DiskFull", hyperparameters={"failures": 1})
    failed, _ = await failure_of(node, spec)
    assert "the checkpoint of iteration 10 could not be written" in failed.error
    assert "No space left on device" in failed.error
    assert "free disk space" in failed.error


@pytest.mark.parametrize("purpose", ["train", "profile"])
async def test_unreadable_state_fails_in_the_first_step(node, spec_of, purpose):
    failed, log = await failure_of(node, spec_of("NumpyInOptimizer", max_iterations=10**6), purpose=purpose)
    assert "the optimizer's state holds numpy.float64: checkpoints hold tensors and plain" in failed.error
    assert "checkpoint_written" not in log


async def test_a_missing_checkpoint_does_not_start_the_job_anew(node, spec_of):
    spec = spec_of("Points")
    failed, _ = await failure_of(node, spec, checkpoint_iteration=400, checkpoint_wait_s=0.0)
    assert failed.error.startswith("the checkpoint of iteration 400 is not in /")
    assert failed.error.endswith("of the pool, or EF_CHECKPOINT_STORE to a bucket")


async def test_a_torn_unreported_checkpoint_loses_nothing(node, spec_of):
    job_id = node.new_job_id()
    first = await node.launch(spec_of("Points", max_iterations=10), job_id=job_id)
    await first.first(Finished)
    await first.ended()
    torn = f"g{1:010d}-i{15:014d}-{'0' * 64}.ckpt"
    (node.checkpoints_of(job_id) / torn).write_bytes(b"half of it")
    again = await node.launch(
        spec_of("Points", max_iterations=20), job_id=job_id, generation=2, checkpoint_iteration=10
    )
    assert (await again.first(Started)).iteration == 10
    await again.ended()


async def test_a_checkpoint_that_appears_late_is_awaited(node, spec_of):
    job_id = node.new_job_id()
    first = await node.launch(spec_of("Points", max_iterations=10), job_id=job_id)
    await first.first(Finished)
    await first.ended()
    folder = node.checkpoints_of(job_id)
    hidden = folder.with_name(f"{job_id}-hidden")
    hidden.mkdir()
    checkpoints = [file.rename(hidden / file.name) for file in folder.glob("*.ckpt")]
    assert checkpoints
    again = await node.launch(
        spec_of("Points", max_iterations=20), job_id=job_id, generation=2, checkpoint_iteration=10
    )
    await again.first(Alive)
    for file in checkpoints:
        file.rename(folder / file.name)
    assert (await again.first(Started)).iteration == 10
    await again.ended()


async def test_an_unusable_gpu_does_not_fail_the_job(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(spec_of("Points"), job_id=job_id, device="cuda", gpu_index=NO_SUCH_GPU)
    assert (await workers.ended())[0].code == ExitCode.DEVICE_UNUSABLE
    assert not workers.all_of(Failed)
    assert f"cannot use GPU {NO_SUCH_GPU}, which the driver lists" in node.log_of(job_id)


async def test_a_gpu_lost_in_a_step_does_not_fail_the_job(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(spec_of("LosesItsGpu"), job_id=job_id)
    assert (await workers.ended())[0].code == ExitCode.DEVICE_UNUSABLE
    assert not workers.all_of(Failed)
    assert "the GPU was lost: CUDA error: uncorrectable ECC error encountered; look" in node.log_of(job_id)
