"""`eflow submit`, `quote` and `cancel`, before a real admission service; and what goes wrong."""

import asyncio
import importlib
import json
import sys
from pathlib import Path

import pytest

import elasticflow
from elasticflow.shared.messages import events
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from tests.support.command_line import WAIT_S, FrontDoor

# --- submit, quote, cancel ------------------------------------------------------------------------------


async def test_a_job_that_fits_is_admitted_with_its_promise(door: FrontDoor) -> None:
    ran = await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    assert ran.status == 0, ran.err
    assert "admitted  j1" in ran.out
    assert "deadline" in ran.out
    assert "in 5m 00s" in ran.out
    assert "expected finish" in ran.out


async def test_the_code_of_a_file_lies_in_the_object_store(door: FrontDoor) -> None:
    ran = await door.eflow("submit", "line.py:Line", "--deadline", "300s", "--json")
    spec = ran.value["spec"]
    assert spec["training_function"] == "line:Line"
    archive = await door.bus.get_object("EF_CODE_default", spec["code_digest"])
    assert b"class Line(ElasticJob)" in archive


async def test_a_rejection_offers_commands_that_are_admitted(door: FrontDoor) -> None:
    rejected = await door.eflow(
        "submit", "line.py", "--deadline", "9s", "--name", "j1", "--iterations", "400"
    )
    assert rejected.status == 1
    assert "rejected  j1" in rejected.out
    commands = [line.split("eflow ", 1)[1].split() for line in rejected.out.splitlines() if "take it" in line]
    assert len(commands) >= 2
    for number, command in enumerate(commands):  # each on its own
        assert "--iterations" in command
        name = f"taken-{number}"
        accepted = await door.eflow(*(name if word == "j1-2" else word for word in command))
        assert accepted.status == 0, accepted.out + accepted.err
        assert f"admitted  {name}" in accepted.out
        assert (await door.eflow("cancel", name)).status == 0


@pytest.mark.parametrize(("option", "field"), [("--name", "job_id"), ("--tenant", "tenant")])
async def test_a_name_that_is_no_token_is_refused_before_anything_is_sent(
    door: FrontDoor, option: str, field: str
) -> None:
    ran = await door.eflow("submit", "line.py", "--deadline", "300s", option, "no spaces")
    assert ran.status == 1
    assert ran.err == f"eflow: {field}: must be 1 to 64 letters, digits, _ and -, not 'no spaces'\n"
    assert (await door.eflow("jobs", "--all", "--json")).value == []


async def test_one_answer_names_all_that_is_wrong(door: FrontDoor) -> None:
    ran = await door.eflow("submit", "line.py", "--batch", "0", "--name", "no spaces", "--tenant", "a b")
    assert ran.status == 1
    assert all(f"{field}: " in ran.err for field in ("global_batch_size", "deadline", "job_id", "tenant")), (
        ran.err
    )


async def test_the_same_id_twice_is_one_job(door: FrontDoor) -> None:
    wish = ("submit", "line.py", "--deadline", "300s", "--name", "j1", "--json")
    first, again = await door.eflow(*wish), await door.eflow(*wish)
    assert first.value == again.value
    other = await door.eflow(*wish, "--iterations", "50")
    assert (other.status, other.value["reason"]) == (1, "duplicate")
    assert len((await door.eflow("jobs", "--json")).value) == 1


async def test_options_stand_above_the_class(door: FrontDoor) -> None:
    ran = await door.eflow(
        "submit", "line.py", "--class", "best-effort", "--set", "rate=0.5", "--set", "name=x", "--json"
    )
    spec = ran.value["spec"]
    assert (spec["job_class"], spec["hyperparameters"]) == ("best_effort", {"rate": 0.5, "name": "x"})


async def test_quoting_submits_nothing(door: FrontDoor) -> None:
    ran = await door.eflow("quote", "line.py", "--json")
    assert ran.status == 0, ran.err
    assert ran.value["earliest_deadline_s"] > door.now_s
    assert (await door.eflow("jobs", "--all", "--json")).value == []


async def test_no_quote_without_a_measured_speed_is_a_negative_answer(door: FrontDoor) -> None:
    ran = await door.eflow("quote", "line.py", "--batch", "32")
    assert ran.status == 1
    assert "speed is not known yet" in ran.out


async def test_cancel_tells_whether_there_was_something_to_cancel(door: FrontDoor) -> None:
    await door.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    assert (await door.eflow("cancel", "j1", "--json")).value["cancelled"] is True
    again = await door.eflow("cancel", "j1")
    assert again.status == 0  # the same wish, told again
    nothing = await door.eflow("cancel", "j2")
    assert nothing.status == 1
    assert "no such job" in nothing.out


async def test_waiting_ends_at_the_timeout(door: FrontDoor) -> None:
    ran = await door.eflow(
        "submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait", "--timeout", "500ms"
    )
    assert (ran.status, "'500ms' is not a duration; write 90s" in ran.err) == (2, True)
    ran = await door.eflow(
        "submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait", "--timeout", "0.5s"
    )
    assert ran.status == 2
    assert "'j1' did not end within 0.5 s; `eflow logs -f j1` follows it" in ran.err


async def test_waiting_ends_with_the_job(door: FrontDoor) -> None:
    process = await door.start("submit", "line.py", "--deadline", "300s", "--name", "j1", "--wait")
    assert process.stdout is not None
    async with asyncio.timeout(WAIT_S):
        while b"admitted" not in await process.stdout.readline():
            pass
    await door.place("j1", "node-0:0", "node-0:1")
    await door.train("j1", iteration=60)
    await door.tell(
        events.JobFinished(
            job_id="j1", generation=1, iteration=100, condition="max_iterations", at_s=door.now_s + 50.0
        )
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "finished  j1: 100 iterations" in out.decode()


async def test_the_same_from_python(door: FrontDoor, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(door.folder))
    job = importlib.import_module("line").Line().set_deadline(within=300)
    where = {"nats_url": door.url}
    quoted = await asyncio.to_thread(elasticflow.quote, job, **where)
    assert quoted.earliest_deadline_s is not None
    admitted = await asyncio.to_thread(elasticflow.submit, job, job_id="j1", **where)
    assert isinstance(admitted, events.JobAdmitted)
    (view,) = elasticflow.jobs(**where)  # blocks this event loop, as a cell of a notebook does
    assert (view.job_id, view.activity) == ("j1", "waiting")
    cancelled = await asyncio.to_thread(elasticflow.cancel, "j1", **where)
    assert isinstance(cancelled, events.JobCancelled)
    assert (await asyncio.to_thread(elasticflow.wait, "j1", **where)).activity == "cancelled"


# --- what goes wrong ------------------------------------------------------------------------------------


async def test_a_failure_is_one_line_and_an_exit_code(door: FrontDoor) -> None:
    expected: list[tuple[tuple[str, ...], int, str]] = [
        (("jobs", "--nats-url", "nats://127.0.0.1:1"), 2, "no NATS JetStream at nats://127.0.0.1:1"),
        (("jobs", "--pool", "mars"), 2, "no pool 'mars'"),
        (("explain", "nobody"), 1, "unknown job 'nobody'"),
        (("submit", "line.py", "--deadline", "2001-01-01T00:00"), 1, "in the past"),
    ]
    for arguments, status, said in expected:
        ran = await door.eflow(*arguments)
        assert ran.status == status, (arguments, ran)
        assert said in ran.err + ran.out, (arguments, ran)


async def test_a_wrong_token_is_said_so(tmp_path: Path, door: FrontDoor) -> None:
    with EmbeddedServer(tmp_path / "guarded", token="secret") as guarded:
        ran = await door.eflow("jobs", "--nats-url", guarded.url.replace("secret", "guess"))
    assert ran.status == 2
    assert "rejects the credentials" in ran.err
    assert "guess" not in ran.err


async def test_the_plain_nats_example_of_the_docs_runs(door: FrontDoor) -> None:
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "publish-messages.md").read_text()
    example = page.partition("```python\n")[2].partition("```")[0]
    assert '"model_name": "digits-cnn", ' in example
    example = example.replace('"model_name": "digits-cnn"', '"model_name": "linear"').replace("256", "64")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", example, "by-hand", env=door.environment(), stdout=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(WAIT_S):
        out, _ = await process.communicate()
    assert process.returncode == 0
    assert "stored as message 1\nJobAdmitted" in out.decode()
    (job,) = (await door.eflow("jobs", "--json")).value
    assert job["job_id"] == "by-hand"


async def test_what_the_nats_command_of_the_docs_puts_on_the_wire_is_kept_and_answered(
    door: FrontDoor,
) -> None:
    """The command is no part of the tests' installation: these are its bytes, `pub -J ... -H Nats-Msg-Id:...`."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "publish-messages.md").read_text()
    body = page.partition("```json\n")[2].partition("```")[0].rstrip()  # as $(cat submit.json) does
    assert "{{" not in body
    body = body.replace('"global_batch_size": 256,', '"global_batch_size": 64, "model_name": "linear",')
    headers = "NATS/1.0\r\nNats-Msg-Id: my-first-command\r\n\r\n"
    sizes = f"{len(headers)} {len(headers) + len(body.encode())}"
    token, _, server = door.url.removeprefix("nats://").rpartition("@")
    connect = {"auth_token": token, "verbose": False, "headers": True, "no_responders": True}
    host, _, port = server.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(WAIT_S):
        assert (await reader.readline()).startswith(b"INFO ")
        writer.write(
            f"CONNECT {json.dumps(connect)}\r\n"
            "SUB ef.answer.default.* 1\r\n"
            "SUB stored 2\r\n"
            f"HPUB ef.submit.default.default stored {sizes}\r\n{headers}{body}\r\n".encode()
        )
        assert (await reader.readline()).startswith(b"MSG stored 2 ")
        stored = json.loads(await reader.readline())
        assert (await reader.readline()).startswith(b"MSG ef.answer.default.digits-1 1 ")
    writer.close()
    await writer.wait_closed()
    assert (stored["stream"], stored["seq"]) == ("EF_SUBMIT_default", 1)
    (job,) = (await door.eflow("jobs", "--json")).value
    assert (job["job_id"], job["activity"]) == ("digits-1", "waiting")
