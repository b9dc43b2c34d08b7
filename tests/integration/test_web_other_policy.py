"""Another policy on the ledger of the page: as the command line compares, and refused with one sentence."""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from starlette.requests import Request
from starlette.types import Message

from elasticflow.simulator.baselines.policy_catalogue import POLICY_NAMES
from elasticflow.web import other_policy
from elasticflow.web.page_values import POLICIES
from elasticflow.web.read_routes import Page
from elasticflow.web.sources import RecordedSource
from testbed.command_line import CommandLinePool
from testbed.page_ledger import exported, of_newer_eflow, page_history, recorded, write_export
from testbed.served_page import PATIENCE_S, PageClient, served_page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("export") / "run.ledger"
    write_export(page_history(), file)
    return file


@pytest.fixture(scope="module")
def client(file: Path) -> Iterator[PageClient]:
    with served_page(str(file)) as link:
        yield PageClient(link)


def test_the_page_names_the_policies_of_the_simulator(client: PageClient) -> None:
    assert POLICIES == POLICY_NAMES
    assert client.session["policies"] == list(POLICY_NAMES)


def test_the_comparison_is_that_of_the_command_line(client: PageClient, file: Path) -> None:
    status, shown = client.post("/api/other-policy?policy=edf&from=12", {})
    assert status == 200
    command = [sys.executable, "-m", "elasticflow", "replay", str(file), "--policy", "edf", "--from", "12", "--json"]
    assert shown == json.loads(subprocess.run(command, capture_output=True, check=True).stdout)
    fates = {job["job_id"]: (job["modelled"], job["other"]) for job in shown["jobs"]}
    assert fates["risky"] == ("met", "late")


def test_an_opened_export_is_compared_also_with_messages_of_a_newer_eflow(client: PageClient) -> None:
    history = page_history()
    assert client.post("/api/export", exported(history, *of_newer_eflow(history)))[0] == 200
    status, shown = client.post("/api/other-policy?policy=tiresias&source=export", {})
    assert (status, shown["policy"]) == (200, "tiresias")
    assert shown["until_sequence"] == len(history.messages) + 2


def test_a_saved_page_has_a_comparison_of_its_own_ledger_only(client: PageClient) -> None:
    history = page_history()
    assert client.post("/api/export", exported(history))[0] == 200
    saved = "/api/saved?policy=edf&from=20&source=export"
    forgotten = (409, "lay edf over again: this server has forgotten its result\n")
    assert client.get(saved) == forgotten
    client.post("/api/other-policy?policy=edf&from=20&source=export", {})
    status, page = client.get(saved)
    assert status == 200
    assert "under edf, which decides after message 20" in page
    client.post("/api/export", exported(history))
    assert client.get(saved) == forgotten


async def test_a_live_ledger_is_compared_up_to_now(cli: CommandLinePool) -> None:
    await cli.eflow("submit", "line.py", "--deadline", "300s", "--name", "j1")
    await cli.place("j1", "node-0:0", "node-0:1")
    with served_page(environment=cli.environment()) as link:
        client = await asyncio.to_thread(PageClient, link)
        while (await asyncio.to_thread(client.get, "/api/jobs/j1"))[0] != 200:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        status, shown = await asyncio.to_thread(client.post, "/api/other-policy?policy=edf", {})
    assert status == 200, shown
    (job,) = shown["jobs"]
    assert (job["job_id"], job["recorded"], job["other"]) == ("j1", "open", "met")
    assert job["other_gpus"][0][1] > 0


@pytest.mark.parametrize(
    ("query", "text"),
    [
        ("policy=oracle", f"policy 'oracle' is none of {', '.join(POLICY_NAMES)}"),
        ("policy=edf&from=67", "nothing follows sequence 67: the ledger ends at 67"),
        ("policy=edf&from=-1", "from must be a number, not '-1'"),
        ("policy=--help", f"policy '--help' is none of {', '.join(POLICY_NAMES)}"),
        ("policy=edf&source=other", "no ledger 'other' is open; open its file again"),
    ],
    ids=["unknown policy", "from the end", "negative", "an option", "unknown ledger"],
)
def test_what_cannot_be_compared_is_one_sentence(client: PageClient, query: str, text: str) -> None:
    status, answer = client.post(f"/api/other-policy?{query}", {})
    assert 400 <= status < 500
    assert answer.strip() == text


async def test_a_browser_that_leaves_ends_its_comparison(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    monkeypatch.setattr(
        other_policy, "module_command", lambda *arguments: ("sh", "-c", f"echo $$ > {pid}; exec sleep 600")
    )
    source = RecordedSource("run.ledger", recorded(page_history()))
    await source.fold_all()
    page = Page(sources={"live": source})

    async def receive() -> Message:
        """The browser leaves once the simulator runs."""
        while not pid.exists() or not pid.read_text():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return {"type": "http.disconnect"}

    app = SimpleNamespace(state=SimpleNamespace(page=page))
    scope = {"type": "http", "method": "POST", "query_string": b"policy=edf", "headers": [], "app": app}
    async with asyncio.timeout(PATIENCE_S):
        response = await other_policy.other_policy(Request(scope, receive))
    assert response.body == b""
    assert not page.comparing.locked()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_a_simulator_that_takes_too_long_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(other_policy, "MAX_S", 0.0)
    monkeypatch.setattr(other_policy, "module_command", lambda *arguments: ("sleep", "600"))
    with pytest.raises(TimeoutError):
        asyncio.run(other_policy.replayed("run.ledger"))
