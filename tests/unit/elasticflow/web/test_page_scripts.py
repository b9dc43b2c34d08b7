"""The pure scripts of the page, run by node: they show what the server would say at that time. Skipped without node."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from elasticflow.history.formatting import shortened
from elasticflow.history.tables import Ranking
from elasticflow.web.page_values import expected_at, finish_at, margin_at, past_update, sentence_at
from elasticflow.web.pool_history import PoolHistory
from elasticflow.web.read_routes import encoded
from elasticflow.web.server import STATIC
from testbed.histories import NOW_S
from testbed.page_ledger import page_history, recorded

NODE = shutil.which("node")
pytestmark = pytest.mark.skipif(NODE is None, reason="needs node")
TIMES_S = [NOW_S + after for after in (58.0, 66.4, 80.0, 159.9, 160.1, 199.9, 200.1, 500.0)]


def by_node(script: str, value: Any = None) -> Any:
    """What the script prints as JSON. It gets the modules of the page as `page`, and a value as `value`."""
    begin = (
        'import { readFileSync } from "node:fs"; const value = JSON.parse(readFileSync(0, "utf8"));'
        f"const page = (name) => import(`{STATIC.as_uri()}/${{name}}.js`); const print = (shown) =>"
        " console.log(JSON.stringify(shown));"
    )
    command = [str(NODE), "--input-type=module", "-e", begin + script]
    done = subprocess.run(command, input=encoded(value), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    return json.loads(done.stdout)


def test_a_page_that_gets_no_update_says_what_the_server_would_say() -> None:
    history = PoolHistory()
    for stored, message in recorded(page_history().finished("running", at_s=NOW_S + 70.0)):
        history.fold(stored.sequence, stored.stored_at_s, message)
    rows = past_update(history, history.state, NOW_S + 58.0, None)["jobs"]
    shown = by_node(
        "const { promiseOf, finishOf, marginOf, sentenceOf } = await page('words');"
        "print(value.times.map((at) => value.rows.map((row) => "
        "  [promiseOf(row, at), finishOf(row, at), marginOf(row, at), sentenceOf(row, at)])));",
        {"times": TIMES_S, "rows": rows},
    )
    assert shown == [
        [
            [expected_at(row, at_s)["promise"], finish_at(row, at_s), margin_at(row, at_s), sentence_at(row, at_s)]
            for row in rows
        ]
        for at_s in TIMES_S
    ]
    promises = {row["job_id"]: [at[number][0] for at in shown] for number, row in enumerate(rows)}
    assert promises["risky"] == ["at risk"] * 4 + ["broken"] * 4
    assert set(promises["running"]) == {"kept"}
    assert set(promises["crashed"]) == {"failed"}


def test_names_lose_their_middle_as_in_a_terminal() -> None:
    names = ["digits", "sw-learning_rate-0_001", "n" * 64]
    shown = by_node(
        "const { shortened } = await page('words');"
        "print(value.map((name) => shortened(name, (text) => text.length <= 16)));",
        names,
    )
    assert shown == [shortened(name, 16) for name in names]


def test_the_times_of_the_axis_are_as_many_as_have_room() -> None:
    lengths_s = (0.4, 3.0, 61.0, 3_000.0, 90_000.0, 86_400.0 * 40, 86_400.0 * 4_000)
    axes = [(NOW_S, NOW_S + length_s, most) for length_s in lengths_s for most in (1, 3, 9)]
    shown = by_node(
        "const { timesOf } = await page('lanes');"
        "print(value.map(([fromS, toS, most]) => timesOf({ fromS, toS }, most)));",
        axes,
    )
    for (from_s, to_s, most), times in zip(axes, shown, strict=True):
        assert len(times) <= most + 1
        assert all(from_s <= at_s < to_s for at_s in times)
        assert times == sorted(set(times))


def test_few_lanes_are_tall_and_many_are_not() -> None:
    shown = by_node("const { lanePxOf } = await page('lanes'); print([0, 1, 2, 5, 200].map(lanePxOf));")
    assert shown == [144, 144, 120, 48, 48]


def test_the_best_job_of_a_sweep_is_first() -> None:
    ranking = Ranking(metric="loss", lowest_first=True)
    jobs = [
        {"job_id": name, "sweep": sweep, "swept": {"rate": rate}, "metrics": metrics, "ranking": ranking}
        for name, sweep, rate, metrics in (
            ("a", "sw", 0.1, {"loss": 2.0}),
            ("b", "sw", 0.2, {}),
            ("c", "sw", 0.3, {"loss": 1.0, "accuracy": 0.5}),
            ("d", "", 0.4, {"loss": 0.0}),
        )
    ]
    jobs[1]["ranking"] = None
    (sweep,) = by_node(
        "globalThis.document = undefined; const { rankedSweeps } = await page('sweeps'); print(rankedSweeps(value));",
        jobs,
    )
    assert [job["job_id"] for job in sweep["jobs"]] == ["c", "a", "b"]
    assert (sweep["name"], sweep["swept"], sweep["metrics"]) == ("sw", ["rate"], ["loss", "accuracy"])
