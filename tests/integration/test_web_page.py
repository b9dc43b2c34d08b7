"""`eflow ui` as a process: what it serves of a file and of a live pool, and what it refuses."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticflow.shared.messages.codec import READER_VERSION
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from testbed.command_line import CommandLinePool
from testbed.histories import NOW_S, History
from testbed.page_ledger import exported, of_newer_eflow, page_history, write_export
from testbed.served_page import PageClient, in_thread, served_page


@pytest.fixture(scope="module")
def of_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    """The page of an export."""
    file = tmp_path_factory.mktemp("export") / "run.ledger"
    write_export(page_history(), file)
    with served_page(str(file)) as link:
        yield PageClient(link)


def test_a_file_is_shown_at_any_message_and_time(of_file: PageClient) -> None:
    shown = of_file.session["sources"]["live"]
    assert (shown["title"], shown["is_live"], shown["last_at_s"]) == ("run.ledger", False, NOW_S + 58.0)
    jobs = {job["job_id"]: job for job in of_file.get("/api/state?sequence=12")[1]["jobs"]}
    assert list(jobs) == ["kept"]
    at_ms = int((NOW_S + 20.0) * 1000)
    (kept,) = of_file.get(f"/api/state?at_ms={at_ms}")[1]["jobs"]
    assert (kept["iteration"], kept["steps"]) == (72, [[NOW_S + 1.0, 8]])
    _, detail = of_file.get("/api/jobs/kept")
    assert detail["row"]["expectations"][-1]["promise"] == "kept"
    assert len(detail["reports"]) == 24


def test_events_are_paged_and_filtered(of_file: PageClient) -> None:
    _, newest = of_file.get("/api/events?count=5")
    assert [row["type"] for row in newest["rows"]][-1] == "JobAtRisk"
    _, earlier = of_file.get(f"/api/events?count=5&before={newest['before']}")
    assert earlier["rows"][-1]["sequence"] == newest["rows"][0]["sequence"] - 1
    _, of_type = of_file.get("/api/events?type=JobRejected")
    assert [row["fields"]["job_id"] for row in of_type["rows"]] == ["rejected"]
    _, of_job = of_file.get("/api/events?job=crashed&type=JobFailed")
    assert len(of_job["rows"]) == 1


@pytest.mark.parametrize(
    ("path", "status", "text"),
    [
        ("/api/jobs/unknown", 404, "there is no job 'unknown' at this time"),
        ("/api/jobs/..%2F..%2Fetc/logs", 404, "Not Found"),
        ("/api/state?sequence=-1", 400, "sequence must be a number, not '-1'"),
        ("/api/state?source=other", 404, "no ledger 'other' is open; open its file again"),
        ("/api/quote?like=kept", 409, "this page shows a file, not a live pool"),
        ("/static/../server.py", 404, "Not Found"),
    ],
)
def test_a_request_that_fits_nothing_gets_one_line(of_file: PageClient, path: str, status: int, text: str) -> None:
    found, answer = of_file.get(path)
    assert (found, answer.strip()) == (status, text)


def test_a_browser_opens_an_export_beside_it(of_file: PageClient) -> None:
    data = exported(page_history())
    status, text = of_file.post("/api/export", data[:-20])
    assert (status, "the file cannot be replayed: cut off after sequence" in text) == (422, True)
    status, opened = of_file.post("/api/export", data)
    assert (status, opened["source"]) == (200, "export")
    row = of_file.get("/api/jobs/kept?source=export")[1]["row"]
    assert row["expectations"][-1]["promise"] == "kept"


def test_an_export_of_a_newer_eflow_is_not_shown_as_complete(of_file: PageClient) -> None:
    assert of_file.session["sources"]["live"]["incomplete"] == ""
    history = page_history()
    assert of_file.post("/api/export", exported(history, *of_newer_eflow(history)))[0] == 200
    told = of_file.get("/api/session")[1]["sources"]["export"]["incomplete"]
    assert told == (
        f"Incomplete from message {len(history.messages) + 1} on: "
        f"this eflow reads messages of version {READER_VERSION}; "
        "2 messages cannot be read, the first because of its type: 'JobDreamed' is unknown here. "
        "Use a newer eflow to see all of it."
    )
    changes = of_file.stream("/api/stream?source=export")
    assert next(value for name, value in changes if name == "status")["incomplete"] == told


def test_an_export_of_a_pool_that_asks_for_a_newer_reader_says_so(of_file: PageClient) -> None:
    history = History().configured(minimum_reader_version=READER_VERSION + 1)
    assert of_file.post("/api/export", exported(history))[0] == 200
    told = of_file.get("/api/session")[1]["sources"]["export"]["incomplete"]
    assert f"the pool asks for version {READER_VERSION + 1}. Use a newer eflow" in told


def test_a_page_that_reads_does_not_write(of_file: PageClient) -> None:
    status, text = of_file.post("/api/jobs/running/cancel", {})
    assert (status, "`eflow ui --operator`" in text) == (403, True)


async def test_changes_of_a_live_pool_arrive_from_where_a_browser_was(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    with served_page(environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        changes = client.stream()
        whole = await in_thread(changes, "message")
        while not whole["jobs"]:
            whole = await in_thread(changes, "message")
        assert [job["job_id"] for job in whole["jobs"]] == ["j1"]
        again = client.stream(last_event_id=whole["sequence"])
        idle = await in_thread(again, "message")
        nothing_new = (False, whole["sequence"], [], None, [])
        assert (idle["whole"], idle["sequence"], idle["jobs"], idle["nodes"], idle["feed"]) == nothing_new
        await cli.place("j1", "node-0:0", "node-0:1")
        seen = [await in_thread(again, "message")]
        while seen[-1]["jobs"][0]["num_gpus"] == 0:  # each later message concerns the job
            seen.append(await in_thread(again, "message"))
        missed = await in_thread(client.stream(last_event_id=whole["sequence"]), "message")
        for last in (seen[-1], missed):
            assert (last["whole"], last["jobs"][0]["gpus"]) == (False, ["node-0:0", "node-0:1"])
        told = [row["sequence"] for change in seen for row in change["feed"]]
        assert told == [row["sequence"] for row in missed["feed"]] == sorted(set(told))
        assert told[0] > whole["sequence"]


async def test_an_operator_amends_cancels_and_reserves(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    refused = await cli.eflow("submit", "line.py", "--deadline", "5s", "--name", "too-early")
    assert refused.status == 1
    with served_page("--operator", environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        await _known(client, "too-early")
        _, quote = await asyncio.to_thread(client.get, "/api/quote?like=j1&iterations=50")
        assert quote["earliest_deadline_s"] > cli.now_s
        _, reserved = await asyncio.to_thread(client.post, "/api/quote?like=j1&iterations=50", {})
        assert (reserved["accepted"], reserved["type"]) == (True, "QuoteReserved")
        _, amended = await asyncio.to_thread(client.post, "/api/jobs/j1/amend", {"deadline_in_s": 600})
        assert amended["accepted"]
        status, text = await asyncio.to_thread(client.post, "/api/jobs/j1/amend", {"deadline_in_s": "soon"})
        assert (status, text.strip()) == (400, "deadline_in_s must be a positive number, not 'soon'")
        for body in (b" " * 5_000, iter([b"{", b" " * 5_000])):
            status, text = await asyncio.to_thread(client.post, "/api/jobs/j1/amend", body)
            assert (status, text.strip()) == (413, "the request is too large")
        _, taken = await asyncio.to_thread(client.post, "/api/jobs/too-early/take-offer", {"offer": 0})
        assert taken["type"] == "JobAdmitted"
        _, cancelled = await asyncio.to_thread(client.post, "/api/jobs/j1/cancel", {})
        assert cancelled["accepted"]
        _, again = await asyncio.to_thread(client.post, "/api/jobs/j1/amend", {"deadline_in_s": 600})
        assert not again["accepted"]
        assert again["text"]
    (job,) = [job for job in (await cli.eflow("jobs", "--all", "--json")).value if job["job_id"] == "j1"]
    assert job["activity"] == "cancelled"


async def test_an_operator_of_another_tenant_changes_nothing(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    with served_page("--operator", "--tenant", "another", environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        await _known(client, "j1")
        before = (await asyncio.to_thread(client.get, "/api/jobs/j1"))[1]["row"]
        assert before["tenant"] != client.session["tenant"] == "another"
        for command, wanted in (("cancel", {}), ("amend", {"deadline_in_s": 600}), ("checkpoint", {})):
            status, answer = await asyncio.to_thread(client.post, f"/api/jobs/j1/{command}", wanted)
            assert (status, answer["accepted"]) == (200, False), command
            assert "tenant another has no such job" in answer["text"], command
        refused = await cli.eflow("submit", "line.py", "--deadline", "5s", "--name", "too-early")
        assert refused.status == 1
        await _known(client, "too-early")
        status, text = await asyncio.to_thread(client.post, "/api/jobs/too-early/take-offer", {"offer": 0})
        assert (status, text.strip()) == (409, f"only tenant {before['tenant']} can take an offer of too-early")
        after = (await asyncio.to_thread(client.get, "/api/jobs/j1"))[1]["row"]
        assert (after["activity"], after["deadline_s"]) == (before["activity"], before["deadline_s"])


async def test_logs_follow_the_files_of_the_workers(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    folder = cli.folder / "logs" / "j1"
    folder.mkdir(parents=True)
    (folder / "g1-r0.log").write_text("first\nunfinished")
    with served_page(environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        await _known(client, "j1")
        lines = client.stream(path="/api/jobs/j1/logs")
        assert (await in_thread(lines, "message"))["lines"] == ["g1-r0 | first"]
        longer = cli.folder / "longer.log"
        longer.write_text("first\nunfinished no more\n" + "flood\n" * 5_000)
        longer.replace(folder / "g1-r0.log")  # in one step: the page reads at any time
        flood = await in_thread(lines, "message")
        assert (flood["lines"], flood["skipped"]) == (["g1-r0 | flood"] * 2_000, 3_001)


async def test_a_lost_connection_is_told_and_its_end_too(cli: CommandLinePool, nats_server: EmbeddedServer) -> None:
    with served_page(environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        changes = client.stream()
        assert (await in_thread(changes, "status"))["stale_since_s"] is None
        nats_server.kill()
        stale = await in_thread(changes, "status")
        while stale["stale_since_s"] is None:
            stale = await in_thread(changes, "status")
        nats_server.start()
        while stale["stale_since_s"] is not None:
            stale = await in_thread(changes, "status")


async def test_what_cannot_be_served_is_one_line(cli: CommandLinePool) -> None:
    with contextlib.closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        failed = await cli.eflow("ui", "--port", str(port))
        assert (failed.status, failed.err.strip()) == (
            2,
            f"eflow: another process listens on 127.0.0.1:{port}; choose another port, or 0 for a free one",
        )
    (cli.folder / "bad.ledger").write_bytes(b"no export")
    bad = await cli.eflow("ui", "bad.ledger")
    assert bad.status == 2
    assert "not an export of an ElasticFlow ledger" in bad.err
    absent = await cli.eflow("ui", str(Path("no") / "file"))
    assert (absent.status, absent.err.count("\n")) == (2, 1)


async def _known(client: PageClient, job_id: str) -> None:
    """Wait until the page has read the job."""
    while (await asyncio.to_thread(client.get, f"/api/jobs/{job_id}"))[0] != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
