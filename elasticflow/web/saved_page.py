"""The pool at one time as one HTML file that opens without a server: no script, and its styles inlined.

Every text of the ledger is escaped, and the policy of the file itself forbids scripts.
"""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

from elasticflow.sdk.times import clock_time, duration_in_words
from elasticflow.web.expectations import expected_at, finish_at, margin_at
from elasticflow.web.saved_lanes import PROMISES, lanes

_STYLES = ("frame.css", "parts.css", "pages.css", "saved.css")
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
_JOB_COLUMNS = ("Job", "Tenant", "Promise", "State", "GPUs", "Iteration", "Finish", "Deadline", "Margin")
_NODE_COLUMNS = ("Node", "State", "GPUs", "Jobs")
_FATE_COLUMNS = ("Job", "Deadline", "Recorded", "As recorded, modelled", "Under it, modelled")


def saved_page(
    title: str, update: Mapping[str, Any], *, incomplete: str = "", compared: Mapping[str, Any] | None = None
) -> str:
    """update: of `past_update`, the whole pool. incomplete: what of the ledger could not be read, in words.

    compared: what `eflow replay --policy OTHER --json` prints; laid over the lanes.
    """
    now_s, jobs = update["now_s"], _in_order(update["jobs"])
    at = datetime.fromtimestamp(now_s, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S %Z")
    styles = "".join((Path(__file__).parent / "static" / name).read_text() for name in _STYLES)
    left_out = update["num_jobs"] - len(jobs)
    notes = [incomplete, f"{left_out} jobs are neither shown nor counted here." if left_out > 0 else ""]
    return "".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f'<meta http-equiv="content-security-policy" content="{_POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            f"<title>{escape(title)}, {at}</title><style>{styles}</style></head><body><main>",
            f'<h1>{escape(title)}</h1><p class="when">At <b>{at}</b>, after message {update["sequence"]}</p>',
            *(f'<p class="problem">{escape(note)}</p>' for note in notes if note),
            _numbers(update, now_s),
            _panel("Promise lanes", lanes(jobs, now_s, compared)),
            *([_other_policy(compared, now_s)] if compared else ()),
            _panel("Decisions", _feed(update["feed"], now_s)),
            _panel("Jobs", _table("Jobs", _JOB_COLUMNS, (_job_cells(job, now_s) for job in jobs))),
            _panel("Nodes", _table("Nodes", _NODE_COLUMNS, (_node_cells(node) for node in update["nodes"] or ()))),
            "</main></body></html>\n",
        )
    )


def _in_order(jobs: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """As the lanes of the page: the live ones, then the newest."""
    return sorted(jobs, key=lambda job: (not job["live"], -job["decided_at_s"], job["job_id"]))


def _panel(title: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2>{content}</section>'


def _numbers(update: Mapping[str, Any], now_s: float) -> str:
    words = [expected_at(job, now_s)["promise"] for job in update["jobs"]]
    shown = {
        "GPUs used": f"{update['num_gpus_used']}<small> of {update['num_gpus']}</small>",
        "● Promises live": words.count("promised") + words.count("at risk"),
        "▲ At risk": words.count("at risk"),
        "✕ Broken": words.count("broken"),
        "✕ Failed": words.count("failed"),
        "✓ Kept": words.count("kept"),
    }
    rows = "".join(f"<div><dt>{name}</dt><dd>{each}</dd></div>" for name, each in shown.items())
    return f'<dl class="numbers saved">{rows}</dl>'


def _other_policy(compared: Mapping[str, Any], now_s: float) -> str:
    def cell(job: Mapping[str, Any], whose: str) -> str:
        end_s: float | None = job[f"{whose}_end_s"]
        if end_s is None or job[whose] == "rejected":
            return job[whose]
        return f"{job[whose]} at {clock_time(end_s, now_s=now_s)}"

    def cells(job: Mapping[str, Any]) -> tuple[str, ...]:
        deadline = "-" if job["deadline_s"] is None else clock_time(job["deadline_s"], now_s=now_s)
        return job["job_id"], deadline, *(cell(job, whose) for whose in ("recorded", "modelled", "other"))

    jobs = compared["jobs"]
    changed = sum(job["modelled"] != job["other"] for job in jobs)
    begin = f"after message {compared['from_sequence']}" if compared["from_sequence"] else "from the start"
    policy = escape(compared["policy"])
    said = f"<p>{changed} of {len(jobs)} jobs end otherwise under {policy}, which decides {begin}.</p>"
    return _panel(f"Another policy: {policy}", said + _table("Its jobs", _FATE_COLUMNS, map(cells, jobs)))


def _feed(feed: list[Mapping[str, Any]], now_s: float) -> str:
    """The newest first."""
    if not feed:
        return '<p class="empty">No decision so far.</p>'
    rows = (
        f"<li><time>{clock_time(row['at_s'], now_s=now_s)}</time>"
        f"<span><b>{escape(row['name'])}</b> {escape(row['text'])}</span></li>"
        for row in reversed(feed)
    )
    return f'<ol class="saved-feed">{"".join(rows)}</ol>'


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{escape(first)}</th>{"".join(f"<td>{escape(cell)}</td>" for cell in others)}</tr>'
        for first, *others in rows
    )
    region = f'class="saved-table" tabindex="0" role="region" aria-label="{title} as a table"'
    return f"<div {region}><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _job_cells(job: Mapping[str, Any], now_s: float) -> tuple[str, ...]:
    symbol, word, _ = PROMISES[expected_at(job, now_s)["promise"]]

    margin_s = margin_at(job, now_s)

    def time(at_s: float | None) -> str:
        return "-" if at_s is None else clock_time(at_s, now_s=now_s)

    return (
        job["job_id"],
        job["tenant"],
        f"{symbol} {word}",
        job["activity"],
        str(job["num_gpus"] or "-"),
        f"{job['iteration']}/{job['max_iterations']}" if job["max_iterations"] else "-",
        time(finish_at(job, now_s)),
        time(job["deadline_s"]),
        "-" if margin_s is None else duration_in_words(margin_s),
    )


def _node_cells(node: Mapping[str, Any]) -> tuple[str, ...]:
    state = next((word for word in ("draining", "awaited", "alive", "left") if node[word]), "lost")
    gpus = f"{node['num_gpus']} {node['gpu_type']}".strip()
    jobs: Iterable[str] = dict.fromkeys(name for name in node["jobs"] if name)
    return node["node_id"], state, gpus, ", ".join(jobs) or "-"
