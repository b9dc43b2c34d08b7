"""The page of a live pool for its operator: each command has its effect, and no page has a finding or an error."""

from collections.abc import Iterator
from typing import Any

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.state.job import Phase
from testbed.page_ledger import HOSTILE
from testbed.served_page import served_page
from tests.page.axe import SETTLE_MS, findings_in_both_themes
from tests.page.conftest import Viewer, opened
from tests.support.pool_in_thread import TENANT, PoolInThread, pool_in_thread

ESCAPES = "\x1b[31mred\x1b[0m \x1b]0;broken in\x07"
LINES = ["loss 0.5", HOSTILE, ESCAPES, "a\u202eb\u200b\x9bc", "loss 0.25"]


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PoolInThread]:
    folder = tmp_path_factory.mktemp("pool")
    with EmbeddedServer(folder / "nats") as server, pool_in_thread(server.url, folder) as pool:
        logs = folder / "logs" / "trains"
        logs.mkdir(parents=True)
        (logs / "g1-r0.log").write_text("".join(f"{line}\n" for line in LINES))
        (logs / "g1-r1.log").write_text("of the second worker\n")
        for job in ("trains", "dropped", "changed"):
            pool.submit(job)
        assert isinstance(pool.submit("too-early", within_s=5.0), events.JobRejected)
        pool.run(pool.cli.place("trains", "node-0:0", "node-0:1"))
        pool.run(pool.cli.train("trains", iteration=40))
        yield pool


@pytest.fixture(scope="module")
def operator(browser: Any, pool: PoolInThread) -> Iterator[Viewer]:
    options = ("--operator", "--tenant", TENANT)
    with served_page(*options, environment=pool.cli.environment()) as link, opened(browser, link) as viewer:
        yield viewer


@pytest.fixture
def viewer(operator: Viewer) -> Viewer:
    operator.problems.clear()
    operator.page.set_viewport_size({"width": 1280, "height": 900})
    return operator


def test_a_job_is_cancelled_after_a_question(viewer: Viewer, pool: PoolInThread) -> None:
    viewer.go("job/dropped")
    viewer.page.click("text=Cancel the job …")
    viewer.page.wait_for_selector("dialog[open] >> text=Cancel dropped?")
    viewer.page.click("dialog[open] >> text=Keep it")
    assert pool.job("dropped").live
    viewer.page.click("text=Cancel the job …")
    viewer.page.click("dialog[open] button.danger")
    viewer.page.wait_for_selector("dl.facts >> text=cancelled")
    assert pool.job("dropped").phase is Phase.CANCELLED
    assert viewer.problems == []


def test_a_job_is_amended(viewer: Viewer, pool: PoolInThread) -> None:
    before_s = pool.job("changed").deadline_s
    viewer.go("job/changed")
    viewer.page.click("text=Amend …")
    viewer.page.get_by_label("Deadline, seconds from now").fill("900")
    viewer.page.get_by_label("Iterations", exact=True).fill("120")
    viewer.page.click("dialog[open] button.primary")
    viewer.page.wait_for_selector(".done >> text=JobAmended")
    viewer.page.wait_for_selector("dl.facts >> text=0 of 120")
    changed = pool.job("changed")
    assert (changed.spec.max_iterations, changed.deadline_s > before_s + 300.0) == (120, True)
    viewer.page.click("text=Amend …")
    viewer.page.get_by_label("Deadline, seconds from now").fill("1")
    viewer.page.click("dialog[open] button.primary")
    viewer.page.wait_for_selector(".problem >> text=AmendRejected")
    assert viewer.problems == []


def test_a_checkpoint_is_written_and_its_iteration_is_shown(viewer: Viewer, pool: PoolInThread) -> None:
    viewer.go("job/trains")
    viewer.page.click("button:text('Checkpoint')")
    while not (job := pool.job("trains")).checkpoint_request:
        viewer.page.wait_for_timeout(50)
    viewer.page.wait_for_selector("button:text('Checkpoint'):disabled")
    written = events.CheckpointWritten(
        job_id="trains", request=job.checkpoint_request, iteration=40, num_bytes=10, file="f", at_s=pool.cli.now_s + 3.0
    )
    pool.run(pool.cli.append(written))
    viewer.page.wait_for_selector(".done >> text=CheckpointWritten")
    assert viewer.problems == []


def test_an_offer_is_taken(viewer: Viewer, pool: PoolInThread) -> None:
    viewer.go("job/too-early")
    viewer.page.click("button:text('Take it') >> nth=0")
    text = viewer.page.wait_for_selector(".done >> text=JobAdmitted").inner_text()
    taken = text.partition("(")[2].rstrip(")")
    assert pool.job(taken).tenant == TENANT
    assert pool.job(taken).live
    assert viewer.problems == []


def test_a_quote_is_reserved(viewer: Viewer, pool: PoolInThread) -> None:
    viewer.go("quote")
    slider = viewer.page.get_by_label("Iterations", exact=True)
    before = viewer.page.wait_for_selector("dl.quote dd").inner_text()
    slider.focus()
    for _ in range(20):
        slider.press("ArrowRight")
    viewer.page.wait_for_function("before => document.querySelector('dl.quote dd')?.innerText !== before", arg=before)
    viewer.page.click("text=Reserve for 5 minutes")
    viewer.page.wait_for_selector(".done >> text=is reserved until")
    command = viewer.page.locator(".command code").inner_text()
    reserved = command.partition("--quote ")[2].split()[0]
    viewer.page.wait_for_selector(".lanes")
    viewer.page.click("text=As a table")
    viewer.page.wait_for_selector(f".behind tbody >> text={reserved}")
    assert findings_in_both_themes(viewer.page) == []
    assert viewer.problems == []


def test_logs_are_searched_and_followed_and_only_text(viewer: Viewer, pool: PoolInThread) -> None:
    viewer.go("job/trains")
    logs = viewer.page.locator("pre.logs")
    viewer.page.wait_for_selector("pre.logs >> text=of the second worker")
    shown = logs.inner_text()
    assert HOSTILE in shown
    assert r"\x1b[31mred\x1b[0m \x1b]0;broken in\x07" in shown
    assert r"a\u202eb\u200b\x9bc" in shown
    assert viewer.page.locator("img[src='x']").count() == 0
    assert "broken in" not in viewer.page.title()
    viewer.page.get_by_label("Worker").select_option("g1-r1")
    viewer.page.wait_for_selector("pre.logs >> text=loss 0.5", state="detached")
    viewer.page.get_by_label("Worker").select_option("")
    viewer.page.locator("section:has(#logs-title) input[type=search]").fill("loss")
    viewer.page.wait_for_selector("pre.logs mark >> nth=1")
    assert logs.locator("mark").all_inner_texts() == ["loss", "loss"]
    assert findings_in_both_themes(viewer.page) == []
    viewer.page.locator("section:has(#logs-title) input[type=search]").fill("")
    with (pool.cli.folder / "logs" / "trains" / "g1-r0.log").open("a") as file:
        file.writelines(f"line {number}\n" for number in range(200))
    viewer.page.wait_for_selector("pre.logs >> text=line 199")
    below = "document.querySelector('pre.logs').scrollHeight - document.querySelector('pre.logs').clientHeight"
    viewer.page.wait_for_function(f"document.querySelector('pre.logs').scrollTop >= {below} - 2")
    viewer.page.get_by_label("Follow").uncheck()
    viewer.page.evaluate("document.querySelector('pre.logs').scrollTop = 0")
    with (pool.cli.folder / "logs" / "trains" / "g1-r0.log").open("a") as file:
        file.write("line 200\n")
    viewer.page.wait_for_selector("pre.logs >> text=line 200")
    assert viewer.page.evaluate("document.querySelector('pre.logs').scrollTop") == 0
    assert viewer.problems == []


@pytest.mark.parametrize("button", ["Cancel the job …", "Amend …"])
@pytest.mark.parametrize("width", [1280, 390])
def test_a_question_is_accessible(viewer: Viewer, button: str, width: int) -> None:
    viewer.page.set_viewport_size({"width": width, "height": 844})
    viewer.go("job/trains")
    viewer.page.click(f"text={button}")
    viewer.page.wait_for_selector("dialog[open]")
    assert findings_in_both_themes(viewer.page) == []
    box = viewer.page.locator("dialog[open]").bounding_box()
    assert 0 <= box["x"] <= box["x"] + box["width"] <= width
    viewer.page.keyboard.press("Escape")
    viewer.page.wait_for_selector("dialog[open]", state="detached")
    assert viewer.problems == []


def test_nodes_of_all_kinds_and_tenants_are_accessible(viewer: Viewer, pool: PoolInThread) -> None:
    pool.run(_add_nodes(pool))
    viewer.go("nodes")
    for text in ("Rack r1", "H100", "80 GiB each", "▲ slow: GPU 0"):
        viewer.page.wait_for_selector(f"main >> text={text}")
    assert viewer.page.get_by_label("Socket 1").count() == 1
    viewer.page.wait_for_selector(".gpu.padding")
    for width in (1280, 390):
        viewer.page.set_viewport_size({"width": width, "height": 844})
        viewer.page.wait_for_timeout(SETTLE_MS)
        assert viewer.page.evaluate("document.documentElement.scrollWidth") <= width
        assert findings_in_both_themes(viewer.page) == []
    viewer.go("tenants")
    viewer.page.wait_for_selector(f"main td, main th >> text={TENANT}")
    assert findings_in_both_themes(viewer.page) == []
    assert viewer.problems == []


async def _add_nodes(pool: PoolInThread) -> None:
    """A node with two sockets in a rack, a slow GPU, and a padding load."""
    at_s = pool.cli.now_s + 4.0
    node = events.NodeJoined(
        node_id="far",
        incarnation="first",
        num_gpus=8,
        device="cuda",
        sockets=2,
        rack="r1",
        gpu_type="H100",
        gpu_memory_bytes=80 << 30,
        at_s=at_s,
    )
    slow = events.WorkerLagged(job_id="trains", generation=1, rank=0, slowdown=2.0, at_s=at_s)
    await pool.cli.append(node, slow)
    load = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)
    opened = events.LoadOpened(load_id="fold", tenant=TENANT, spec=load, useful_share=0.9, at_s=at_s)
    await pool.cli.decide("admission", opened)
