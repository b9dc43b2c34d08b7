"""The page shows characters that move or hide others as what they are."""

from pathlib import Path
from typing import Any

from elasticflow.shared.hidden_characters import HIDDEN, escaped
from elasticflow.shared.messages import events
from testbed.page_ledger import NOW_S, exported, page_history
from testbed.served_page import served_page
from tests.page.conftest import opened

MISLEADING = "model\u202egnp.exe\u2066\u200b\ufeff\x9b"
HAS_HIDDEN = f"new RegExp('[{HIDDEN}]').test(document.body.textContent.replace(/[\\t\\n\\r]/g, ''))"


def test_they_are_escaped_in_the_reasons_and_in_the_errors_of_jobs(browser: Any, tmp_path: Path) -> None:
    history = page_history()
    cancelled = events.JobCancelled(job_id="running", reason=MISLEADING, at_s=NOW_S + 59.0)
    history.then(events.PlanDecided(service="admission", based_on=67, now_s=NOW_S + 59.0, events=(cancelled,)))
    failed = events.JobFailed(
        job_id="risky",
        generation=history.state.live_jobs["risky"].generation,
        error=MISLEADING,
        traceback=f"Traceback: {MISLEADING}",
        at_s=NOW_S + 60.0,
    )
    history.then(failed)
    file = tmp_path / "misleading.ledger"
    file.write_bytes(exported(history))
    with served_page(str(file)) as link, opened(browser, link) as viewer:
        for address, times in (("job/running", 1), ("job/risky", 2), ("events", 1)):
            viewer.go(address)
            viewer.page.wait_for_selector(f"main >> text={escaped(MISLEADING)} >> nth={times - 1}")
            assert viewer.page.evaluate(HAS_HIDDEN.replace("document.body.textContent", "'\u202e'")), "it finds one"
            assert not viewer.page.evaluate(HAS_HIDDEN)
        assert viewer.problems == []
