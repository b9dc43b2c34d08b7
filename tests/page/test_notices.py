"""What a page does not show is told: messages of a newer eflow, and jobs beyond the number that it takes."""

from pathlib import Path
from typing import Any

from elasticflow.shared.messages import events
from elasticflow.shared.messages.events import PlanEvent
from elasticflow.web.page_values import MAX_JOBS
from testbed.page_ledger import NOW_S, exported, of_newer_eflow, page_history
from testbed.served_page import served_page
from tests.page.conftest import opened
from tests.support.worker_events import admitted


def test_messages_of_a_newer_eflow_and_jobs_that_are_left_out_are_told(browser: Any, tmp_path: Path) -> None:
    history = page_history()
    num_jobs = len(history.state.live_jobs) + len(history.state.ended_jobs)
    jobs = tuple[PlanEvent, ...](admitted(f"job-{number}", at_s=NOW_S) for number in range(MAX_JOBS))
    history.then(events.PlanDecided(service="admission", based_on=history.state.sequence, now_s=NOW_S, events=jobs))
    file = tmp_path / "newer.ledger"
    file.write_bytes(exported(history, *of_newer_eflow(history)))
    with served_page(str(file)) as link, opened(browser, link) as viewer:
        viewer.page.wait_for_selector("text=Use a newer eflow to see all of it.")
        viewer.page.wait_for_selector(f"text={num_jobs} jobs are neither shown nor counted here")
        viewer.go("replay")
        viewer.page.wait_for_selector("main >> text=Use a newer eflow to see all of it.")
        assert viewer.problems == []
