"""`eflow submit`, `quote` and `cancel` with a real admission service, and their errors."""

import asyncio
import importlib
import json
import signal
import sys
from pathlib import Path

import pytest

import elasticflow
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.command_line import WAIT_S, CommandLinePool

# --- submit, quote, cancel ------------------------------------------------------------------------------


async def test_a_job_that_fits_is_admitted_with_its_promise(cli: CommandLinePool) -> None:
    ran = await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    assert ran.status == 0, ran.err
    assert "admitted  j1" in ran.out
    assert "deadline" in ran.out
    assert "in 5m 00s" in ran.out
    assert "expected finish" in ran.out


async def test_the_code_of_a_file_is_in_the_object_store(cli: CommandLinePool) -> None:
    ran = await cli.eflow("submit", "line.py:Line", "--deadline", "300s", "--json")
    spec = ran.value["spec"]
    assert spec["training_function"] == "line:Line"
    archive = await cli.bus.get_object("EF_CODE_default", f"default/{spec['code_digest']}", max_bytes=1 << 20)
    assert b"class Line(ElasticJob)" in archive


async def test_a_rejection_offers_commands_that_are_admitted(cli: CommandLinePool) -> None:
    rejected = await cli.eflow("submit", "line.py", "--deadline", "9s", "--name", "j1", "--iterations", "400")
    assert rejected.status == 1
    assert "rejected  j1" in rejected.out
    commands = [line.split("eflow ", 1)[1].split() for line in rejected.out.splitlines() if "take it" in line]
    assert len(commands) >= 2
    for number, command in enumerate(commands):  # each on its own
        assert "--iterations" in command
        name = f"taken-{number}"
        accepted = await cli.eflow(*(name if word == "j1-2" else word for word in command))
        assert accepted.status == 0, accepted.out + accepted.err
        assert f"admitted  {name}" in accepted.out
        assert (await cli.eflow("cancel", name)).status == 0


@pytest.mark.parametrize("option", ["--name", "--tenant"])
async def test_an_invalid_name_is_rejected_before_a_message_is_sent(cli: CommandLinePool, option: str) -> None:
    ran = await cli.eflow("submit", "line.py", "--deadline", "300s", option, "no spaces")
    assert ran.status == 2
    assert ran.err == f"eflow: {option}: must be 1 to 64 letters, digits, _ and -, not 'no spaces'\n"
    assert (await cli.eflow("jobs", "--all", "--json")).value == []


async def test_one_error_names_all_problems(cli: CommandLinePool) -> None:
    ran = await cli.eflow("submit", "line.py", "--batch", "0", "--name", "no spaces", "--tenant", "a b")
    assert ran.status == 2
    assert all(f"{field}: " in ran.err for field in ("--batch", "deadline", "--name", "--tenant")), ran.err


async def test_resubmitting_under_the_same_id_has_no_effect(cli: CommandLinePool) -> None:
    command = ("submit", "line.py", "--deadline", "300s", "--name", "j1", "--json")
    first, again = await cli.eflow(*command), await cli.eflow(*command)
    assert first.value == again.value
    other = await cli.eflow(*command, "--iterations", "50")
    assert (other.status, other.value["reason"]) == (1, "duplicate")
    assert len((await cli.eflow("jobs", "--json")).value) == 1


async def test_options_override_the_class(cli: CommandLinePool) -> None:
    ran = await cli.eflow(
        "submit", "line.py", "--class", "best-effort", "--set", "lr=0.5", "--set", "depth=x", "--json"
    )
    spec = ran.value["spec"]
    assert (spec["job_class"], spec["hyperparameters"]) == ("best_effort", {"lr": 0.5, "depth": "x"})


async def test_quoting_submits_nothing(cli: CommandLinePool) -> None:
    ran = await cli.eflow("quote", "line.py", "--json")
    assert ran.status == 0, ran.err
    assert ran.value["earliest_deadline_s"] > cli.now_s
    assert (await cli.eflow("jobs", "--all", "--json")).value == []


async def test_no_quote_without_a_measured_speed_is_a_negative_answer(cli: CommandLinePool) -> None:
    ran = await cli.eflow("quote", "line.py", "--batch", "32")
    assert ran.status == 1
    assert "speed is not known yet" in ran.out


async def test_cancel_reports_whether_it_cancelled_a_job(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    assert (await cli.eflow("cancel", "j1", "--json")).value["cancelled"] is True
    again = await cli.eflow("cancel", "j1")
    assert again.status == 0  # a repeated command gets the same reply
    nothing = await cli.eflow("cancel", "j2")
    assert nothing.status == 1
    assert "no such job" in nothing.out


async def test_waiting_ends_at_the_timeout(cli: CommandLinePool) -> None:
    ran = await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait", "--timeout", "500ms")
    assert (ran.status, "'500ms' is not a duration; write 90s" in ran.err) == (2, True)
    wait = ("submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait", "--timeout", "0.5s", "--json")
    ran = await cli.eflow(*wait)
    assert (ran.status, ran.value["decision"]) == (2, "admitted")
    assert "'j1' did not end within 0.5 s; `eflow logs -f j1` follows it" in ran.err


async def test_waiting_ends_with_the_job(cli: CommandLinePool) -> None:
    process = await cli.start("submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        while b"admitted" not in await process.stdout.readline():
            pass
    await cli.place("j1", "node-0:0", "node-0:1")
    await cli.train("j1", iteration=60)
    await cli.append(
        events.JobFinished(job_id="j1", generation=1, iteration=100, condition="max_iterations", at_s=cli.now_s + 50.0)
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "finished  j1: 100 iterations" in out.decode()


async def test_the_same_from_python(cli: CommandLinePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(cli.folder))
    job = importlib.import_module("line").Line().set_deadline(within=300)
    where = {"nats_url": cli.url}
    quoted = await asyncio.to_thread(elasticflow.quote, job, **where)
    assert quoted.earliest_deadline_s is not None
    admitted = await asyncio.to_thread(elasticflow.submit, job, job_id="j1", **where)
    assert isinstance(admitted, events.JobAdmitted)
    (view,) = elasticflow.jobs(**where)  # blocks this event loop, as a cell of a notebook does
    assert (view.job_id, view.activity) == ("j1", "waiting")
    cancelled = await asyncio.to_thread(elasticflow.cancel, "j1", **where)
    assert isinstance(cancelled, events.JobCancelled)
    assert (await asyncio.to_thread(elasticflow.wait, "j1", **where)).activity == "cancelled"


# --- errors ---------------------------------------------------------------------------------------------


async def test_a_failure_is_one_line_and_an_exit_code(cli: CommandLinePool) -> None:
    expected: list[tuple[tuple[str, ...], int, str]] = [
        (("jobs", "--nats-url", "nats://127.0.0.1:1"), 2, "no NATS JetStream at nats://127.0.0.1:1"),
        (("jobs", "--pool", "mars"), 2, "no pool 'mars'"),
        (("explain", "unknown"), 1, "unknown job 'unknown'"),
        (("submit", "line.py", "--deadline", "2001-01-01T00:00"), 2, "years in the past"),
    ]
    for arguments, status, said in expected:
        ran = await cli.eflow(*arguments)
        assert ran.status == status, (arguments, ran)
        assert said in ran.err + ran.out, (arguments, ran)


async def test_a_wrong_token_is_named(tmp_path: Path, cli: CommandLinePool) -> None:
    with EmbeddedServer(tmp_path / "guarded", token="secret") as guarded:
        ran = await cli.eflow("jobs", "--nats-url", guarded.url.replace("secret", "guess"))
    assert ran.status == 2
    assert "rejects the credentials" in ran.err
    assert "guess" not in ran.err


async def test_the_plain_nats_example_of_the_docs_runs(cli: CommandLinePool) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "publish-messages.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert '"model_name": "digits-cnn",' in example
    example = example.replace('"model_name": "digits-cnn"', '"model_name": "linear"').replace("256", "64")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example, "by-hand", env=cli.environment(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "stored as message 1\nJobAdmitted" in out.decode()
    (job,) = (await cli.eflow("jobs", "--json")).value
    assert job["job_id"] == "by-hand"


async def test_the_message_of_the_nats_command_in_the_docs_is_stored_and_answered(
    cli: CommandLinePool,
) -> None:
    """The tests have no nats command; these are the bytes that `pub -J ... -H Nats-Msg-Id:...` sends."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "publish-messages.md").read_text()
    body = page.partition("```json\n")[2].partition("```")[0].rstrip()  # as $(cat submit.json) does
    assert "{{" not in body
    body = body.replace('"global_batch_size": 256,', '"global_batch_size": 64, "model_name": "linear",')
    headers = "NATS/1.0\r\nNats-Msg-Id: my-first-command\r\n\r\n"
    sizes = f"{len(headers)} {len(headers) + len(body.encode())}"
    token, _, server = cli.url.removeprefix("nats://").rpartition("@")
    connect = {"auth_token": token, "verbose": False, "headers": True, "no_responders": True}
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(WAIT_S):
        assert (await reader.readline()).startswith(b"INFO ")
        writer.write(
            f"CONNECT {json.dumps(connect)}\r\n"
            "SUB ef.answer.default.default.* 1\r\n"
            "SUB stored 2\r\n"
            f"HPUB ef.submit.default.default stored {sizes}\r\n{headers}{body}\r\n".encode()
        )
        assert (await reader.readline()).startswith(b"MSG stored 2 ")
        stored = json.loads(await reader.readline())
        assert (await reader.readline()).startswith(b"MSG ef.answer.default.default.digits-1 1 ")
    writer.close()
    await writer.wait_closed()
    assert (stored["stream"], stored["seq"]) == ("EF_SUBMIT_default", 1)
    (job,) = (await cli.eflow("jobs", "--json")).value
    assert (job["job_id"], job["activity"]) == ("digits-1", "waiting")


# --- Ctrl-C ---------------------------------------------------------------------------------------------

SLOW_FILE = """
import time
from elasticflow import ElasticJob

print("imported", flush=True)
time.sleep({import_s})

class Line(ElasticJob):
    hyperparameters = {{"global_batch_size": {batch}}}
    max_iterations = 100
    model_name = "linear"
"""


@pytest.mark.parametrize(
    ("import_s", "batch", "until", "said"),
    [
        (600, 64, "imported", "eflow: nothing was submitted\n"),
        (
            0,
            32,  # without a known speed, and no node measures it
            "its speed is unknown",
            "eflow: j1 was sent and goes on, undecided so far; "
            "`eflow explain j1` shows it, `eflow cancel j1` stops it\n",
        ),
        (
            0,
            64,
            "follow it",
            "eflow: j1 was admitted and goes on; `eflow explain j1` shows it, `eflow cancel j1` stops it\n",
        ),
    ],
    ids=["while it imports", "while it is undecided", "while it waits for the end"],
)
async def test_ctrl_c_says_whether_the_job_was_sent(
    cli: CommandLinePool, import_s: int, batch: int, until: str, said: str
) -> None:
    (cli.folder / "slow.py").write_text(SLOW_FILE.format(import_s=import_s, batch=batch))
    process = await cli.start("submit", "slow.py", "--deadline", "1h", "--name", "j1", "--wait")
    assert process.stdout is not None
    assert process.stderr is not None
    stream = process.stderr if until.startswith("its") else process.stdout
    async with asyncio.timeout(WAIT_S):
        while until not in (line := (await stream.readline()).decode()):
            assert line, "the command has ended"
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert (process.returncode, err.decode().splitlines(keepends=True)[-1]) == (130, said)
    assert "Traceback" not in err.decode()
