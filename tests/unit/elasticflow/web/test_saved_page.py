"""The saved page: complete, of one instant, harmless, and without anything from elsewhere."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from elasticflow.web.page_values import past_update, sentence_at
from elasticflow.web.pool_history import PoolHistory
from elasticflow.web.saved_page import MAX_LANES, saved_page
from testbed.histories import NOW_S, History
from testbed.page_ledger import HOSTILE, page_history, recorded, with_failed_best_effort


class Elements(HTMLParser):
    """The elements of a document, with their attributes, and its text."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def count(self, tag: str) -> int:
        return sum(name == tag for name, _ in self.found)


def update_of(history: History, *, messages: int | None = None, now_s: float = NOW_S + 60.0) -> dict[str, Any]:
    shown = PoolHistory()
    for stored, message in recorded(history)[:messages]:
        shown.fold(stored.sequence, stored.stored_at_s, message)
    return past_update(shown, shown.state, now_s, None)


def test_it_has_the_jobs_the_nodes_the_lanes_and_the_decisions() -> None:
    update = update_of(page_history())
    saved = saved_page("run.ledger", update)
    elements = Elements(saved)
    for name in ("kept", "rejected", "crashed", "running", "risky"):
        assert saved.count(f'<th scope="row">{name}</th>') == 1
    assert "✓ kept" in elements.text
    assert "▲ at risk" in elements.text
    assert '<th scope="row">node-1</th><td>alive</td><td>4</td>' in saved
    tracks = [attributes for tag, attributes in elements.found if attributes.get("class") == "track"]
    assert sentence_at(update["jobs"][-1], update["now_s"]) in [attributes["aria-label"] for attributes in tracks]
    assert update["feed"][-1]["text"] in elements.text
    assert f"after message {update['sequence']}" in elements.text


def test_jobs_without_a_promise_are_counted_when_they_fail() -> None:
    history = with_failed_best_effort(page_history().finished("risky", at_s=NOW_S + 165.0))
    saved = saved_page("run.ledger", update_of(history, now_s=NOW_S + 170.0))
    assert "<dt>✕ Failed</dt><dd>2</dd>" in saved


COMPARED: dict[str, Any] = {
    "policy": "edf",
    "from_sequence": 0,
    "modelled_until_s": NOW_S + 500.0,
    "jobs": [
        {
            "job_id": name,
            "deadline_s": deadline_s,
            "recorded": "live",
            "recorded_end_s": None,
            "modelled": "met",
            "modelled_end_s": NOW_S + 90.0,
            "other": fate,
            "other_end_s": end_s,
            "other_gpus": [[NOW_S + 1.0, 8], [NOW_S + 5.0, 0], [NOW_S + 9.0, 4]],
        }
        for name, deadline_s, fate, end_s in (
            ("running", NOW_S + 200.0, "late", None),
            ("risky", None, "met", NOW_S + 80.0),
            ("of another time", None, "met", NOW_S + 80.0),
        )
    ],
}


def test_another_policy_is_laid_over_and_in_a_table() -> None:
    saved = saved_page("run.ledger", update_of(page_history()), compared=COMPARED)
    elements = Elements(saved)
    assert "1 of 3 jobs end otherwise under edf, which decides from the start." in elements.text
    assert "GPUs under edf, modelled" in elements.text
    outlines = [attributes["style"] for tag, attributes in elements.found if attributes.get("class") == "ahead other"]
    assert len(outlines) == 2 * 2  # jobs that are shown, and times with GPUs
    row = saved.partition("Another policy: edf")[2].partition('<th scope="row">running</th>')[2].partition("</tr>")[0]
    assert row.count("met at ") == 1
    assert row.endswith("<td>late</td>")


def test_an_earlier_instant_knows_nothing_of_the_later_ones() -> None:
    saved = saved_page("run.ledger", update_of(page_history(), messages=12, now_s=NOW_S + 10.0))
    assert ">kept<" in saved
    assert "risky" not in saved


def test_an_empty_pool_is_a_page_too() -> None:
    text = Elements(saved_page("pool", update_of(History(), now_s=NOW_S))).text
    assert "No job was submitted so far." in text
    assert "No decision so far." in text


def test_hostile_texts_are_only_text_and_nothing_comes_from_elsewhere() -> None:
    update = update_of(page_history())
    update["jobs"][0] |= {"job_id": HOSTILE, "activity": HOSTILE, "sentence": f'"{HOSTILE}', "tenant": HOSTILE}
    update["feed"][0] |= {"name": HOSTILE, "text": HOSTILE}
    update["nodes"][0] |= {"node_id": HOSTILE, "jobs": [HOSTILE]}
    compared = COMPARED | {"policy": HOSTILE, "jobs": [COMPARED["jobs"][0] | {"job_id": HOSTILE, "other": HOSTILE}]}
    elements = Elements(saved_page(HOSTILE, update, incomplete=HOSTILE, compared=compared))
    assert HOSTILE in elements.text
    assert {tag for tag, _ in elements.found} & {"script", "img", "link", "iframe", "a"} == set()
    names = {name for _, attributes in elements.found for name in attributes}
    assert not [name for name in names if name.startswith("on") or name in ("src", "href")]
    (policy,) = (each["content"] for tag, each in elements.found if "http-equiv" in each)
    assert policy == "default-src 'none'; style-src 'unsafe-inline'"
    assert "url(" not in "".join(re.findall(r"<style>(.*?)</style>", saved_page("pool", update), re.DOTALL))


@pytest.mark.parametrize(("num_jobs", "num_lanes"), [(3, 3), (MAX_LANES + 5, MAX_LANES)])
def test_lanes_are_limited_and_the_table_is_not(num_jobs: int, num_lanes: int) -> None:
    update = update_of(page_history())
    template = update["jobs"][0]
    update["jobs"] = [template | {"job_id": f"job-{number}", "live": False} for number in range(num_jobs)]
    update["num_jobs"] = num_jobs + 2
    saved = saved_page("pool", update)
    assert saved.count('class="track"') == num_lanes
    assert saved.count('<th scope="row">job-') == num_jobs
    assert ("the table has all" in saved) == (num_jobs > MAX_LANES)
    assert "2 jobs are neither shown nor counted here." in saved


def test_a_promise_whose_deadline_has_passed_is_broken() -> None:
    update = update_of(page_history())
    update["now_s"] = NOW_S + 201.0  # the deadline of "running" is a second earlier
    row = saved_page("run.ledger", update).partition('<th scope="row">running</th>')[2].partition("</tr>")[0]
    assert "✕ broken" in row
