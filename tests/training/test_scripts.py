"""An elastic script: the same bits as the class, while workers join, leave and die."""

import json

import pytest
import pytest_asyncio

from benchmarks.engine.sensitive import digest
from elasticflow.shared.messages.worker_protocol.from_worker import (
    ExitCode,
    Failed,
    Finished,
    Interrupted,
    Profiled,
    Progressed,
    Started,
    Warned,
)
from tests.support.rings import few_daily
from tests.support.trained_jobs import (
    all_switched,
    checkpoint_of,
    end_of,
    files_of,
    script,
    slow_down_script,
    stateful,
    switch,
    train,
    train_disturbed,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")


def example(spec_of, *, epochs: int = 4):
    return script(spec_of, "--epochs", str(epochs), name="examples.ddp.elastic", global_batch_size=150)


def digest_of_what_was_trained(node, job_id: str) -> str:
    state = checkpoint_of(node, job_id)
    return digest([state["model"], state["optimizer"], state["iteration"], state["metrics"]["loss"]])


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def alone(node, spec_of):
    """The result of one worker on the example."""
    return await train(node, example(spec_of))


async def test_the_example_learns_the_same_on_three_workers_and_saves_it(node, spec_of, alone):
    job_id = node.new_job_id()
    assert await train(node, example(spec_of), job_id=job_id, num_workers=3) == alone
    assert alone.metrics["accuracy"] > 0.9
    assert (files_of(node, job_id) / "digits.pt").is_file()


async def test_a_script_and_a_class_give_the_same_bits_through_switches_and_a_crash(node, spec_of):
    job_id = node.new_job_id()
    await train(node, stateful(spec_of, until=30), job_id=job_id)
    expected = digest_of_what_was_trained(node, job_id)

    job_id = node.new_job_id()
    spec = script(spec_of, "stateful", global_batch_size=21, until=30)
    slow_down = slow_down_script(node, job_id)
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    workers = await switch(node, workers, [0, 1, None], [2, 0])
    (files_of(node, job_id) / "die").touch()
    await workers.first(Interrupted)
    (survivor,) = (rank for rank, event in workers.events if isinstance(event, Interrupted))
    workers = await node.switch_generation(workers, [survivor, None], lost=[1 - survivor])
    await all_switched(workers, [survivor, None])
    slow_down.unlink()
    await end_of(node, workers)
    assert digest_of_what_was_trained(node, job_id) == expected


async def test_counters_of_a_loop_count_steps_through_switches_a_crash_and_a_restart(node, spec_of):
    def job():
        return script(spec_of, "own_counters", global_batch_size=21)

    alone = await train(node, job(), num_workers=3)
    assert await end_of(node, await train_disturbed(node, job(), node.new_job_id())) == alone


async def test_a_loop_that_trains_nothing_gets_all_data_and_samples_of_parts_are_named(node, spec_of):
    def job():
        return script(spec_of, "evaluates_over_its_loader", global_batch_size=16)

    job_id = node.new_job_id()
    workers = await node.launch(job(), job_id=job_id, num_workers=2)
    warned = await workers.first(Warned)
    assert "num_samples grows in each step by the samples of one part of the batch, of which a step has 8" in (
        warned.warning
    )
    two = await end_of(node, workers)
    assert two.metrics["total"] == pytest.approx(two.metrics["everything"], rel=1e-4)
    assert await train(node, job()) == two


@pytest.mark.parametrize(
    ("changed", "name"),
    few_daily([("global", "SCALE"), ("held", "dataset.settings['scale']"), ("labels", "dataset.labels")], 2),
)
async def test_a_loop_that_changes_what_the_data_set_reads_is_refused(node, spec_of, changed, name):
    workers = await node.launch(script(spec_of, "changes_data", changed), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    await workers.ended()
    assert f"the loop changed {name}, which the processes that read the data do not see" in failed.error
    assert not workers.all_of(Finished)


async def test_a_loop_that_evaluates_over_a_data_set_with_a_cache_is_not_refused(node, spec_of):
    assert (await train(node, script(spec_of, "changes_data", "nothing", until=20))).metrics["loss"] > 0.0


async def test_a_running_loss_is_that_of_whole_batches_on_any_number_of_workers(node, spec_of):
    """It decides about a rate. What else depends on the part of a batch is named, also by a worker that is alone."""

    def job():
        return script(spec_of, "adds_up_losses", global_batch_size=16)

    job_id = node.new_job_id()
    workers = await node.launch(job(), job_id=job_id)
    assert (
        "the script gives __main__:adds_up_losses.num_close another value for each part"
        in (await workers.first(Warned)).warning
    )
    alone = await end_of(node, workers)
    assert alone.metrics["last"] == pytest.approx(alone.metrics["loss"], rel=1e-6)
    assert 0 < alone.metrics["rate"] < 0.05
    (line,) = (files_of(node, job_id) / "history.txt").read_text().splitlines()
    losses = json.loads(line)
    assert (len(losses), min(losses)) == (6, alone.metrics["best"])
    job_id = node.new_job_id()
    assert await train(node, job(), job_id=job_id, num_workers=3) == alone
    assert (files_of(node, job_id) / "history.txt").read_text().splitlines() == [line], "it is written once"
    assert await end_of(node, await train_disturbed(node, job(), node.new_job_id())) == alone


async def test_who_keeps_values_of_parts_goes_on_when_a_peer_dies_behind_its_step(node, spec_of):
    """The survivors have taken the step, and keep it."""
    job_id = node.new_job_id()
    slow_down = slow_down_script(node, job_id)
    spec = script(spec_of, "adds_up_losses", global_batch_size=16)
    workers = await node.launch(spec, job_id=job_id, num_workers=2)
    await workers.first(Progressed)
    (files_of(node, job_id) / "die").touch()
    interrupted = await workers.first(Interrupted)
    assert interrupted.iteration > 0
    (survivor,) = (rank for rank, event in workers.events if isinstance(event, Interrupted))
    workers = await node.switch_generation(workers, [survivor, None], lost=[1 - survivor])
    await all_switched(workers, [survivor, None])
    slow_down.unlink()
    assert (await end_of(node, workers)).metrics["best"] > 0


async def test_what_a_script_does_before_the_loop_of_an_epoch_holds_for_all_its_steps(node, spec_of):
    """On any number of workers, through switches, a crash and a restart within an epoch."""

    def job():
        return script(spec_of, "top_of_epoch", global_batch_size=21)

    alone = await train(node, job())
    assert alone == await train(node, job(), num_workers=3)
    assert await end_of(node, await train_disturbed(node, job(), node.new_job_id())) == alone
    profiled = await node.launch(job(), job_id=node.new_job_id(), purpose="profile")
    await profiled.first(Profiled)
    await profiled.ended()


@pytest.mark.parametrize(
    ("what", "warning"),
    [
        ("weights", "cross_entropy() with weight divides, as seen in iteration 10, by the weights of one part"),
        ("sum", "sum() divided by 16 adds up the samples of one part of the batch, of which a step has 8"),
        ("samples", "last_losses: the code keeps tensors there that it makes or changes"),
    ],
)
async def test_what_gives_another_result_in_parts_is_named_also_if_it_begins_later(node, spec_of, what, warning):
    workers = await node.launch(script(spec_of, "begins_later", what, global_batch_size=16), job_id=node.new_job_id())
    await workers.first(Finished)
    await workers.ended()
    assert [warning in warned.warning for warned in workers.all_of(Warned)] == [True]


@pytest.mark.parametrize(("name", "how"), few_daily([("changes_modules", "attributes"), ("resets_a_layer", "end")], 1))
async def test_what_a_script_changes_once_reaches_all_that_join_or_start_again(node, spec_of, name, how):
    """Attributes of a loss and of a layer of torch; weights at the end of an epoch."""

    def job():
        return script(spec_of, name, how, global_batch_size=21)

    alone = await train(node, job())
    assert alone == await train(node, job(), num_workers=3)
    assert await end_of(node, await train_disturbed(node, job(), node.new_job_id())) == alone


def seen_in(folder) -> dict[int, list[tuple[int, ...]]]:
    """The epoch and the samples of each part, by iteration; a part of a repeated step occurs again."""
    seen: dict[int, list[tuple[int, ...]]] = {}
    for line in (folder / "seen").read_text().splitlines():
        iteration, *part = map(int, line.split())
        seen.setdefault(iteration, []).append(tuple(part))
    return {iteration: sorted(set(parts)) for iteration, parts in seen.items()}


@pytest.mark.parametrize(
    ("how", "iterations_an_epoch", "held_out"),
    few_daily([("weighted", 2, [i for i in range(50) if i % 5]), ("in order", 3, []), ("subset", 2, range(35, 50))], 1),
)
async def test_a_loaders_order_is_kept_through_switches_a_crash_and_a_restart(
    node, spec_of, how, iterations_an_epoch, held_out
):
    """Each step has the same samples, in the same parts, and each epoch as many steps."""
    job_id = node.new_job_id()
    undisturbed = await train(node, script(spec_of, "sampled", how, global_batch_size=21), job_id=job_id)
    assert undisturbed == await train(node, script(spec_of, "sampled", how, global_batch_size=21), num_workers=3)
    expected = seen_in(files_of(node, job_id))
    assert not {number for parts in expected.values() for _, *part in parts for number in part} & {*held_out}
    assert f"an epoch has {iterations_an_epoch} iterations" in node.log_of(job_id)
    if how == "in order":
        assert [number for _, *part in expected[0] for number in part] == list(range(21))
    if how == "weighted":
        assert [parts[0][0] for parts in expected.values()] == [iteration // 2 for iteration in range(40)]

    job_id = node.new_job_id()
    spec = script(spec_of, "sampled", how, global_batch_size=21)
    workers = await train_disturbed(node, spec, job_id)
    assert await end_of(node, workers) == undisturbed
    assert seen_in(files_of(node, job_id)) == expected


async def test_a_sampler_that_differs_in_each_process_fails_the_restart_and_the_second_worker(node, spec_of):
    spec = script(spec_of, "sampled", "entropy", global_batch_size=21)
    workers = await node.launch(spec, job_id=node.new_job_id(), num_workers=2)
    failed = await workers.first(Failed)
    assert "samples: 50 of 50, drawn as #" in failed.error
    assert "let its sampler draw from a fixed seed" in failed.error
    for worker in workers.workers.values():
        worker.kill()
    await workers.ended()

    job_id = node.new_job_id()
    await train(node, spec, job_id=job_id)
    again = await node.launch(
        script(spec_of, "sampled", "entropy", global_batch_size=21, until=60), job_id=job_id, generation=2
    )
    failed = await again.first(Failed)
    await again.ended()
    assert "let the job read the same data in the same order at every start" in failed.error


@pytest.mark.parametrize(
    ("settings", "rate"),
    [(["40", "step", "1000"], 0.0), (["9", "epoch", "9"], 0.0), (["10", "4", "9"], 0.0)],
)
async def test_a_schedule_for_the_jobs_steps_or_epochs_or_of_another_rhythm_is_kept(node, spec_of, settings, rate):
    """50 samples in batches of 11: 40 steps are 8.8 epochs."""
    job_id = node.new_job_id()
    await train(node, script(spec_of, "cosine", *settings, global_batch_size=11), job_id=job_id)
    assert f"last rate {rate:.6f}" in node.log_of(job_id)


async def test_a_schedule_follows_the_steps_and_outlives_a_restart(node, spec_of):
    job_id = node.new_job_id()
    for generation, until in enumerate((10, 30), start=1):
        spec = script(spec_of, "schedule_by_steps", until=until)
        await train(node, spec, job_id=job_id, num_workers=generation, generation=generation)
        assert f"last epoch of the schedule: {until}" in node.log_of(job_id, generation=generation)


async def test_a_script_that_ends_early_ends_the_job_also_when_repeated(node, spec_of):
    """The second time as if its executor had died before it recorded the end."""
    job_id = node.new_job_id()
    for generation in (1, 2):
        workers = await node.launch(example(spec_of, epochs=2), job_id=job_id, num_workers=2, generation=generation)
        finished = await workers.first(Finished)
        assert (finished.iteration, finished.condition) == (20, "metric")
        assert {exit_.code for exit_ in (await workers.ended()).values()} == {ExitCode.DONE}


async def test_a_script_that_exceeds_the_memory_restarts_with_smaller_micro_batches(node, spec_of):
    """An error in its loop ends it: its progress is saved, and its worker counts as lost."""
    job_id = node.new_job_id()
    workers = await node.launch(script(spec_of, "too_big", until=10), job_id=job_id)
    interrupted = await workers.first(Interrupted)
    assert (interrupted.iteration, interrupted.micro_batch_size) == (5, 2)
    assert (await workers.ended())[0].code == ExitCode.OUT_OF_MEMORY
    again = await node.launch(script(spec_of, "too_big", until=10), job_id=job_id, generation=2, micro_batch_size=1)
    assert (await again.first(Started)).iteration == 5
    assert (await again.first(Finished)).iteration == 10
    await again.ended()


async def test_a_loop_that_may_be_left_between_two_parts_is_named_before_it_is(node, spec_of):
    workers = await node.launch(script(spec_of, "leaves_late", "own"), job_id=node.new_job_id())
    warned = await workers.first(Warned)
    assert "the script may leave its loop within an epoch (scripts.py:" in warned.warning
    failed = await workers.first(Failed)
    assert "scripts left its loop within a global batch" in failed.error
    await workers.ended()
    job_id = node.new_job_id()
    await train(node, script(spec_of, "leaves_late"), job_id=job_id)
    assert checkpoint_of(node, job_id)["iteration"] == 15, "loader.iteration says so in the last one only"


@pytest.mark.parametrize("second", ["epochs", "plain"])
async def test_a_script_that_trains_on_behind_its_loop_over_epochs_fails_instead_of_ending_early(node, spec_of, second):
    workers = await node.launch(script(spec_of, "trains_in_two_loops", second), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    assert "scripts trains on behind its first loop over loader.epochs(), which ended the job after" in failed.error
    assert "train in one loop over loader.epochs(n)" in failed.error
    await workers.ended()


@pytest.mark.parametrize("num_epochs", few_daily([1, 2, 5], 2))
async def test_a_script_that_ends_before_its_measurement_would_is_measured(node, spec_of, num_epochs):
    """Its data are one step."""
    spec = script(spec_of, "some_epochs", str(num_epochs), global_batch_size=50)
    for purpose in ({}, {"most_virtual_nodes": 8, "measures_step_times": True}):
        workers = await node.launch(spec, job_id=node.new_job_id(), purpose="profile", profile_min_s=60.0, **purpose)
        assert (await workers.first(Profiled)).iterations_per_s > 0
        await workers.ended()


async def test_a_script_with_its_own_counter_ends_with_the_job(node, spec_of):
    assert "loss" in (await train(node, script(spec_of, "counts_by_itself"))).metrics


async def test_a_profiling_run_leaves_nothing_behind(node, spec_of):
    job_id = node.new_job_id()
    workers = await node.launch(example(spec_of), job_id=job_id, num_workers=2, purpose="profile", profile_min_s=0.1)
    assert (await workers.first(Profiled)).dataset_size == 1500
    await workers.ended()
    assert not node.checkpoints_of(job_id).exists()


@pytest.mark.parametrize(
    ("word", "error", "traceback"),
    [
        ("raises", "RuntimeError: no more of this", 'raise RuntimeError("no more of this")'),
        (
            "takes_arguments",
            " (train: error: unrecognized arguments: --widht 8) ends the process while the model and the data",
            "parse_args",
        ),
        ("never_trains", "scripts ended without training, by sys.exit(0) at scripts.py:", ""),
        ("accumulates", "it called backward(). Remove gradient accumulation", ""),
        ("steps_a_new_optimizer", "stepped an optimizer (SGD) that was not passed to elastic()", ""),
        ("steps_two_optimizers one", "stepped an optimizer (SGD) that was not passed to elastic()", ""),
        ("steps_two_optimizers passed", "SGD-0.step() is that of a further optimizer, as a GAN has", ""),
        ("resets_a_layer top", "changed the parameter extra.weight before the first batch of a loop, in iteration", ""),
        ("changes_modules loss", "train() bound crit to another HuberLoss until iteration 2", ""),
        ("changes_modules layer", "train() replaced the module body.2 of the model in iteration 2", ""),
        ("changes_modules hook", "train() called register_forward_hook() of body in iteration 2", ""),
        ("changes_modules method", "train() gave model.body.2.forward another function in iteration 2", ""),
        ("makes_batches", "the loader has batch_size=None", ""),
        ("plateau", "the schedule ReduceLROnPlateau steps with", ""),
        ("averages_in_a_variable", "train() changed shadow['", ""),
        ("breaks", "scripts left its loop within a global batch", ""),
        (
            "sampled batch_sampler",
            "a list chooses whole batches, but a job forms global batches",
            "",
        ),
        ("cosine 192 step 1000", "built for 192 steps, but the job takes 40, with global batches of 16 samples", ""),
        ("cosine 192 step 1000", "submit with --iterations 192, or build it for 40 steps", ""),
        ("cosine 40 step 3", "but the job takes 10, with global batches of 16 samples: build it for 10 steps", ""),
        ("cosine 20 epoch 20", "built for 20 epochs, but the job takes 13", ""),
        ("cosine 12 epoch 9", "built for 12 epochs, but the job takes 9, with global batches of 16 samples: build", ""),
        ("cosine 5 epoch 9", "built for 5 epochs, but the job takes 9, with global batches of 16 samples: build", ""),
        ("cosine 12345 epoch 9", "build it for 9 if it steps once an epoch, or for 29 if it steps once a step", ""),
        ("cosine 20 epoch 20", "submit with --iterations 63, or build it for 13 epochs", ""),
        ("cosine 40 unknown 9", "has a learning-rate schedule that elastic() does not know", ""),
    ],
)
async def test_errors_of_a_script_are_reported(node, spec_of, word, error, traceback):
    workers = await node.launch(script(spec_of, *word.split()), job_id=node.new_job_id())
    failed = await workers.first(Failed)
    await workers.ended()
    assert error in failed.error
    assert traceback in failed.traceback
