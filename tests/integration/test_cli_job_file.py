"""`eflow submit job.toml` and `eflow submit --sweep` with a real admission service."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from elasticflow.cli import completion
from testbed.command_line import WAIT_S, CommandLinePool

JOB_FILE = """
target = "line.py"
deadline = "300s"
name = "nightly"
tenant = "lab"
class = "soft"

[set]
lr = 0.5
depth = "0.1"
"""


async def test_a_job_file_is_submitted_as_its_options_are(cli: CommandLinePool) -> None:
    (cli.folder / "jobs").mkdir()
    (cli.folder / "jobs/job.toml").write_text(JOB_FILE.replace("line.py", "../line.py"))
    ran = await cli.eflow("submit", "jobs/job.toml", "--json")
    assert ran.status == 0, ran.err
    admitted = ran.value
    assert (admitted["job_id"], admitted["tenant"]) == ("nightly", "lab")
    assert admitted["spec"]["job_class"] == "soft"
    assert admitted["spec"]["hyperparameters"] == {"lr": 0.5, "depth": "0.1"}


async def test_the_command_line_overrides_the_file(cli: CommandLinePool) -> None:
    (cli.folder / "job.toml").write_text(JOB_FILE)
    options = ("--name", "by-hand", "--set", "lr=0.25", "--class", "slo", "--iterations", "50")
    ran = await cli.eflow("submit", "job.toml", *options, "--json", EF_TENANT="other")
    assert ran.status == 0, ran.err
    spec = ran.value["spec"]
    assert (ran.value["job_id"], ran.value["tenant"]) == ("by-hand", "lab")
    assert (spec["max_iterations"], spec["job_class"]) == (50, "slo")
    assert spec["hyperparameters"] == {"lr": 0.25, "depth": "0.1"}


async def test_a_rejected_job_file_offers_commands_that_are_admitted(cli: CommandLinePool) -> None:
    (cli.folder / "job.toml").write_text('target = "line.py"\ndeadline = "9s"\niterations = 400\n')
    rejected = await cli.eflow("submit", "job.toml")
    assert rejected.status == 1
    command = next(line.split("eflow ", 1)[1].split() for line in rejected.out.splitlines() if "take it" in line)
    accepted = await cli.eflow(*command)
    assert accepted.status == 0, accepted.out + accepted.err


async def test_a_sweep_submits_a_job_for_each_combination_with_one_deadline(cli: CommandLinePool) -> None:
    ran = await cli.eflow(
        *("submit", "line.py", "--deadline", "1h", "--name", "net", "--set", "lr=1", "--set", "depth=1"),
        *("--sweep", "lr=0.1,0.01", "--sweep", "depth=2,3", "--json"),
    )
    assert ran.status == 0, ran.err
    assert [each["job_id"] for each in ran.value] == [
        "net-lr-0_1-depth-2",
        "net-lr-0_1-depth-3",
        "net-lr-0_01-depth-2",
        "net-lr-0_01-depth-3",
    ]
    assert ran.value[1]["hyperparameters"] == ran.value[1]["spec"]["hyperparameters"] == {"lr": 0.1, "depth": 3}
    assert len({each["deadline_s"] for each in ran.value}) == 1
    assert len((await cli.eflow("jobs", "--json")).value) == 4


async def test_each_job_of_a_sweep_is_admitted_or_rejected_on_its_own(cli: CommandLinePool) -> None:
    (cli.folder / "sweep.toml").write_text(
        'target = "line.py"\ndeadline = "1h"\niterations = 10000\nname = "net"\n'
        "[set]\nlr = 1\n[sweep]\nlr = [0.1, 0.2, 0.3]\n"
    )
    ran = await cli.eflow("submit", "sweep.toml")  # 8 GPUs train two of three within an hour
    assert ran.status == 1, ran.out + ran.err
    head, *rows, reason, summary = ran.out.splitlines()
    assert head.split() == ["JOB", "LR", "ANSWER", "FINISH"]
    assert [row.split()[:3] for row in rows] == [
        ["net-lr-0_1", "0.1", "admitted"],
        ["net-lr-0_2", "0.2", "admitted"],
        ["net-lr-0_3", "0.3", "rejected"],
    ]
    assert reason.startswith("net-lr-0_3: ")
    assert "earliest deadline in" in reason
    assert summary == "2 admitted, 1 rejected"
    values = (await cli.eflow("jobs", "--all", "--json")).value
    assert sorted(each["activity"] for each in values) == ["rejected", "waiting", "waiting"]


async def test_a_sweep_over_an_unknown_hyperparameter_submits_nothing(cli: CommandLinePool) -> None:
    known = "it declares depth, global_batch_size, lr: add it to the `hyperparameters` of the class"
    for option in ("--sweep", "--set"):
        ran = await cli.eflow("submit", "line.py", "--deadline", "1h", option, "rate=0.1")
        assert ran.status == 2
        assert ran.err == f"eflow: {option} rate: Line declares no such hyperparameter; {known}\n"
    many = await cli.eflow("submit", "line.py", "--deadline", "1h", "--sweep", f"lr={','.join(map(str, range(1001)))}")
    assert (many.status, "1001 combinations are more than 1000" in many.err) == (2, True)
    assert (await cli.eflow("jobs", "--all", "--json")).value == []


async def test_a_sweep_is_posted_without_its_decisions(cli: CommandLinePool) -> None:
    ran = await cli.eflow(
        "submit", "line.py", "--deadline", "1h", "--name", "n", "--sweep", "global_batch_size=64,128", "--detach"
    )
    assert ran.status == 0, ran.err
    assert ran.out.splitlines() == ["submitted n-global_batch_size-64", "submitted n-global_batch_size-128"]


async def test_a_job_of_unknown_speed_does_not_hold_up_the_others(cli: CommandLinePool) -> None:
    process = await cli.start(
        *("submit", "line.py", "--deadline", "1h", "--name", "n", "--sweep", "global_batch_size=32,64", "--json")
    )
    try:
        async with asyncio.timeout(WAIT_S):
            while (activities := await _activities(cli)).get("n-global_batch_size-64") is None:
                pass
        assert activities == {"n-global_batch_size-32": "undecided", "n-global_batch_size-64": "waiting"}
    finally:
        process.kill()
        await process.wait()


async def _activities(cli: CommandLinePool) -> dict[str, str]:
    return {each["job_id"]: each["activity"] for each in (await cli.eflow("jobs", "--all", "--json")).value}


async def test_waiting_for_a_sweep_ends_at_the_timeout(cli: CommandLinePool) -> None:
    ran = await cli.eflow(
        *("submit", "line.py", "--deadline", "1h", "--name", "n", "--sweep", "global_batch_size=64"),
        *("--wait", "--timeout", "0.2s"),
    )
    assert (ran.status, "1 admitted" in ran.out) == (2, True)
    assert "'n-global_batch_size-64' did not end within 0.2 s" in ran.err


async def test_the_shell_completes_the_ids_of_jobs(cli: CommandLinePool, monkeypatch: pytest.MonkeyPatch) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "1h", "--name", "digits-1")
    await cli.eflow("submit", "line.py", "--deadline", "1h", "--name", "text-1")
    await cli.eflow("cancel", "text-1")
    monkeypatch.setattr(completion, "TIMEOUT_S", WAIT_S)  # no test asserts wall time
    context: Any = SimpleNamespace(params={"nats_url": cli.url})
    assert await asyncio.to_thread(completion.live_jobs, context, "") == [("digits-1", "waiting")]
    assert await asyncio.to_thread(completion.jobs, context, "te") == [("text-1", "cancelled")]
    words = {"_EFLOW_COMPLETE": "complete_bash", "COMP_WORDS": "eflow explain ", "COMP_CWORD": "2"}
    ran = await cli.eflow(**words)
    assert ran.err == ""
    assert set(ran.out.split()) <= {"digits-1", "text-1"}, "none, if the pool did not answer in time"
