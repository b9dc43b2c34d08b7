"""Users' code that ends, forks or interrupts its worker's process, or asks a person: the failure says what to do."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from elasticflow.services.executor.processes.launcher import Exited
from elasticflow.shared.messages.worker_protocol.from_worker import (
    Ending,
    ExitCode,
    Failed,
    Finished,
    Progressed,
    Warned,
)
from tests.support.trained_jobs import script

pytestmark = pytest.mark.asyncio(loop_scope="session")

USER_CODE = Path(__file__).parents[2] / "testbed" / "user_code"
HERE = " at process_ends.py:"
NO_TERMINAL = "a job has no terminal"
CLASS, ELASTIC, TORCHRUN = "class", "elastic", "torchrun"

MODES = [(CLASS, "bitwise"), (CLASS, "fast"), (ELASTIC, ""), (TORCHRUN, "")]


def spec_with(spec_of, kind: str, deed: str, *words: str, **settings):
    if kind == CLASS:
        return spec_of("process_ends:Ends", hyperparameters={"deed": deed, **settings})
    entry = "__torchrun__" if kind == TORCHRUN else "__main__"
    return script(spec_of, kind, deed, *words, name="process_ends", entry=entry, until=10, global_batch_size=8)


async def outcome_of(node, spec, kind, *, purpose="train"):
    workers = await node.launch(spec, job_id=node.new_job_id(), purpose=purpose)
    outcome = await workers.first(kind)
    await workers.ended()
    return outcome, workers


EXITS = ["sys.exit()", "sys.exit(0)", "sys.exit(3)", "sys.exit('no data')", "exit()"]


@pytest.mark.parametrize("deed", EXITS)
async def test_a_class_that_ends_its_process_is_told_where_and_what_to_do(node, spec_of, deed):
    failed, _ = await outcome_of(node, spec_with(spec_of, CLASS, deed), Failed)
    assert failed.error.startswith(f"{deed}{HERE}")
    assert " ends the process in iteration 4: a job's class ends no process. Return from the method" in failed.error


@pytest.mark.parametrize("deed", ["sys.exit(3)", "sys.exit('no data')", "quit(2)"])
@pytest.mark.parametrize(("kind", "where"), [(ELASTIC, "in iteration 4"), (TORCHRUN, "in the script")])
async def test_a_script_that_ends_with_a_status_is_told_where_and_what_to_do(node, spec_of, kind, where, deed):
    failed, _ = await outcome_of(node, spec_with(spec_of, kind, deed), Failed)
    assert failed.error.startswith(f"{deed.replace('quit', 'exit')}{HERE}")
    assert f" ends the process {where}: a script that ends with another status than 0 has failed" in failed.error


@pytest.mark.parametrize("deed", ["sys.exit()", "sys.exit(0)", "exit()"])
async def test_an_elastic_script_that_ends_within_a_step_is_told_by_which_call(node, spec_of, deed):
    failed, _ = await outcome_of(node, spec_with(spec_of, ELASTIC, deed), Failed)
    assert failed.error.startswith(f"process_ends left its loop within a global batch, by {deed}{HERE}")
    assert "before its optimizer.step(). Leave the loop at the end of an epoch" in failed.error


async def test_an_elastic_script_that_ends_before_its_loop_is_told_by_which_call(node, spec_of):
    failed, _ = await outcome_of(node, spec_with(spec_of, ELASTIC, "sys.exit(0)", "before"), Failed)
    assert failed.error.startswith(f"process_ends ended without training, by sys.exit(0){HERE}")


async def test_status_0_behind_the_loop_ends_a_script_as_at_home(node, spec_of):
    finished, _ = await outcome_of(node, spec_with(spec_of, ELASTIC, "sys.exit(0)", "behind"), Finished)
    assert finished.iteration == 10
    finished, _ = await outcome_of(node, spec_with(spec_of, TORCHRUN, "sys.exit(0)"), Finished)
    assert finished.iteration == 4


async def test_a_profiling_run_of_a_script_that_ends_too_early_names_the_call(node, spec_of):
    failed, _ = await outcome_of(node, spec_with(spec_of, TORCHRUN, "sys.exit(0)"), Failed, purpose="profile")
    assert f"the script ended after 4 optimizer steps, by sys.exit(0){HERE}" in failed.error


@pytest.mark.parametrize("kind", [CLASS, ELASTIC, TORCHRUN])
@pytest.mark.parametrize(
    ("deed", "error", "advice"),
    [
        ("input", "the code asks for input", "Pass the value with --set NAME=VALUE, as an argument of the script"),
        ("getpass", "the code asks for input", "Pass the value with --set NAME=VALUE, as an argument of the script"),
        ("breakpoint", "a debugger waits for its user", "take breakpoint() or set_trace() out, or debug it in your"),
        ("pdb", "a debugger waits for its user", "take breakpoint() or set_trace() out, or debug it in your"),
    ],
)
async def test_code_that_waits_for_a_person_is_told_that_nobody_answers(node, spec_of, kind, deed, error, advice):
    failed, _ = await outcome_of(node, spec_with(spec_of, kind, deed), Failed)
    where = "in the script" if kind == TORCHRUN else "in iteration 4"
    assert failed.error.startswith(f"{error}{HERE}")
    assert f", {where}, and {NO_TERMINAL}" in failed.error
    assert advice in failed.error
    if deed in ("breakpoint", "pdb"):
        assert ("`eflow run FILE`" if kind == CLASS else "`python FILE`") in failed.error


@pytest.mark.parametrize("kind", [CLASS, ELASTIC, TORCHRUN])
async def test_standard_input_that_is_read_otherwise_is_empty_and_warned_of(node, spec_of, kind):
    _, workers = await outcome_of(node, spec_with(spec_of, kind, "reads"), Finished)
    (warned,) = workers.all_of(Warned)
    assert warned.warning.startswith(f"the code reads standard input{HERE}")
    assert NO_TERMINAL in warned.warning


@pytest.mark.parametrize("kind", [CLASS, ELASTIC, TORCHRUN])
@pytest.mark.parametrize("deed", ["os._exit(0)", "os._exit(7)"])
async def test_an_end_at_once_is_a_crash_that_names_the_call(node, spec_of, kind, deed):
    ending, workers = await outcome_of(node, spec_with(spec_of, kind, deed), Ending)
    assert ending.reason.startswith(f"was ended by {deed}{HERE}")
    assert ": raise an exception to let the job fail, or return to let it go on (in " in ending.reason
    assert workers.all_of(Progressed)[-1].iteration == 4
    (ended,) = workers.all_of(Exited)
    assert ended.code == (7 if deed == "os._exit(7)" else ExitCode.FAILED)


@pytest.mark.parametrize("kind", [CLASS, ELASTIC, TORCHRUN])
async def test_a_timer_without_a_handler_is_a_crash_that_names_the_line(node, spec_of, kind):
    ending, _ = await outcome_of(node, spec_with(spec_of, kind, "alarm"), Ending)
    assert ending.reason.startswith(f"was ended by SIGALRM: a timer of the job's code was over, set{HERE}")


@pytest.mark.parametrize(("kind", "mode"), MODES)
async def test_a_forked_process_that_comes_back_into_the_training_fails_the_job(node, spec_of, kind, mode):
    spec = spec_with(spec_of, kind, "returns_in_child", **({"mode": mode} if mode else {}))
    failed, _ = await outcome_of(node, spec, Failed)
    assert failed.error.startswith(f"os.fork(){HERE}")
    assert "has made a second process, which came back into the training" in failed.error
    assert "End the child with os._exit(0), or start a function with multiprocessing.Process" in failed.error


@pytest.mark.parametrize(("kind", "mode"), MODES)
@pytest.mark.parametrize("deed", ["exits_in_child", "raises_in_child", "starts_processes"])
async def test_processes_that_end_by_themselves_disturb_nothing(node, spec_of, kind, mode, deed):
    spec = spec_with(spec_of, kind, deed, **({"mode": mode} if mode else {}))
    finished, _ = await outcome_of(node, spec, Finished)
    assert finished.iteration == 10


async def test_an_interrupt_says_where_it_came(node, spec_of):
    failed, _ = await outcome_of(node, spec_with(spec_of, CLASS, "interrupts"), Failed)
    assert failed.error.startswith("KeyboardInterrupt: this worker got SIGINT, or its code raised it (in iteration 4)")


@pytest.mark.parametrize("kind", [CLASS, ELASTIC, TORCHRUN])
async def test_the_traceback_of_a_profiling_run_shows_the_lines_of_the_code(node, spec_of, kind, tmp_path):
    """The folder of a profiling run is deleted before its error is reported. The engine's frames are folded."""
    code = shutil.copytree(USER_CODE, tmp_path / "code")
    spec = replace(spec_with(spec_of, kind, "raises"), code_digest="0" * 64)
    workers = await node.launch(spec, job_id=node.new_job_id(), purpose="profile", code_path=str(code))
    failed = await workers.first(Failed)
    await workers.ended()
    assert "/profiling-run/1/files/process_ends.py" in failed.traceback
    for line in ('raise KeyError("inner")', 'raise RuntimeError("outer") from error', "DEEDS["):
        assert line in failed.traceback
    assert " frames of elasticflow (eflow explain --traceback shows them)" in failed.traceback
    assert 'raise RuntimeError("outer") from error' in failed.whole_traceback
