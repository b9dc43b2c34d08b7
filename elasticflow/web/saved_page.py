"""The pool at one time as one HTML file that opens without a server: no script, and its styles inlined.

Every text of the ledger is escaped, and the policy of the file itself forbids scripts.
"""

import html
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from elasticflow.history.formatting import shortened
from elasticflow.shared.hidden_characters import escaped
from elasticflow.times import clock_time, duration_in_words
from elasticflow.web.page_values import expected_at, finish_at, margin_at, sentence_at

# --- saved lanes ---------------------------------------------------------------------------------------
# The lanes of the saved page: elements placed in percent, since it holds no script that could draw.

MAX_LANES = 200
_NUM_COLOURS = 8
_LABEL = 24  # characters of a name beside its lane
_NUMBERED_PART = 0.04  # of the time that is shown: a shorter bar has no space for its number
PROMISES = {  # as in words.js: symbol, word, tone
    "promised": ("●", "promised", "good"),
    "at risk": ("▲", "at risk", "risk"),
    "broken": ("✕", "broken", "bad"),
    "kept": ("✓", "kept", "good"),
    "failed": ("✕", "failed", "bad"),
    "cancelled": ("○", "cancelled", "none"),
    "none": ("·", "no promise", "none"),
}

AT_RISK = (
    "No plan keeps the promise with the pool's margin, or the job is stalled. At its speed now it may end in time."
)


def in_html(text: str) -> str:
    """The text as HTML shows it, with hidden characters escaped."""
    return html.escape(escaped(text))


def lanes(jobs: list[Mapping[str, Any]], now_s: float, compared: Mapping[str, Any] | None) -> str:
    """jobs: rows of `past_update`, in the order of the lanes. compared: another policy, as an outline."""
    if not jobs:
        return '<p class="empty">No job was submitted so far.</p>'
    shown = jobs[:MAX_LANES]
    from_s = min(now_s - 60.0, *(job["steps"][0][0] if job["steps"] else job["decided_at_s"] for job in shown))
    ends = (end_s or 0.0 for job in shown for end_s in (job["deadline_s"], job["ended_at_s"], finish_at(job, now_s)))
    others = {job["job_id"]: _other(job, compared) for job in compared["jobs"]} if compared else {}
    to_s = max(now_s + 30.0, *ends, *(end_s for job in shown for _, end_s, _ in others.get(job["job_id"], ())))
    to_s += 0.04 * (to_s - from_s)
    most = max(
        [1, *(step[-1] for job in shown for step in (*job["steps"], *job["promised"], *others.get(job["job_id"], ())))]
    )
    in_turn = sorted(jobs, key=lambda job: (job["decided_at_s"], job["job_id"]))
    colours = {job["job_id"]: number % _NUM_COLOURS for number, job in enumerate(in_turn)}

    def place(start_s: float, end_s: float | None = None) -> str:
        """Left edge and width, in percent of the time that is shown."""
        left = 100.0 * (max(start_s, from_s) - from_s) / (to_s - from_s)
        width = "" if end_s is None else f";width:{max(0.2, 100.0 * (end_s - from_s) / (to_s - from_s) - left):.2f}%"
        return f"left:{left:.2f}%{width}"

    def tall(num_gpus: float) -> str:
        return f"height:{max(12.0, 100.0 * num_gpus / most):.0f}%"

    def lane(job: Mapping[str, Any]) -> Iterator[str]:
        symbol, _, tone = PROMISES[expected_at(job, now_s)["promise"]]
        colour = f"job-{colours[job['job_id']]}"
        under = " · ".join(filter(None, (job["swept_in_words"], job["activity"])))
        name = in_html(shortened(job["job_id"], _LABEL))
        yield f"<li><span><b>{symbol} {name}</b><small>{in_html(under)}</small></span>"
        yield f'<span class="track" role="img" aria-label="{in_html(sentence_at(job, now_s))}">'
        ends_s = [*(step[0] for step in job["steps"][1:]), job["ended_at_s"] or now_s]
        for (start_s, num_gpus), end_s in zip(job["steps"], ends_s, strict=False):
            if num_gpus:
                shown_gpus = num_gpus if end_s - start_s > _NUMBERED_PART * (to_s - from_s) else ""
                yield f'<i class="held {colour}" style="{place(start_s, end_s)};{tall(num_gpus)}">{shown_gpus}</i>'
        for start_s, end_s, num_gpus in job["promised"]:
            if end_s > now_s:
                edge = f"border-color:var(--{colour})"
                yield f'<i class="ahead" style="{place(max(start_s, now_s), end_s)};{tall(num_gpus)};{edge}"></i>'
        for start_s, end_s, num_gpus in others.get(job["job_id"], ()):
            if num_gpus:
                yield f'<i class="ahead other" style="{place(start_s, end_s)};{tall(num_gpus)}"></i>'
        if job["deadline_s"] is not None:
            yield f'<i class="line {tone}" style="{place(job["deadline_s"])}"></i>'
        yield f'<i class="line now" style="{place(now_s)}"></i></span></li>'

    rows = "".join(part for job in shown for part in lane(job))
    scale = "".join(
        f"<span>{clock_time(from_s + part * (to_s - from_s), now_s=now_s)}</span>" for part in (0.0, 0.5, 1.0)
    )
    left_out = f"<p>The first {MAX_LANES} of {len(jobs)}; the table has all.</p>" if len(jobs) > MAX_LANES else ""
    under = (
        f'<li><i class="dashed other"></i>GPUs under {in_html(compared["policy"])}, modelled</li>' if compared else ""
    )
    legend = (
        '<ul class="legend"><li><i class="solid"></i>GPUs held</li><li><i class="dashed"></i>GPUs promised</li>'
        f'{under}<li><i class="deadline"></i>deadline</li>'
        f'<li>● promised <span title="{AT_RISK}">▲ at risk</span> ✕ broken or failed ✓ kept</li></ul>'
    )
    return f'<ol class="saved-lanes">{rows}</ol><p class="scale">{scale}</p>{left_out}{legend}'


def _other(job: Mapping[str, Any], compared: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """Its GPUs under the other policy: start, end, number."""
    steps: list[tuple[float, int]] = job["other_gpus"]
    last_s = compared["modelled_until_s"] if job["other_end_s"] is None else job["other_end_s"]
    ends_s = [*(start_s for start_s, _ in steps[1:]), last_s]
    return [(start_s, end_s, gpus) for (start_s, gpus), end_s in zip(steps, ends_s, strict=False)]


# --- saved page ----------------------------------------------------------------------------------------

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
            f"<title>{in_html(title)}, {at}</title><style>{styles}</style></head><body><main>",
            f'<h1>{in_html(title)}</h1><p class="when">At <b>{at}</b>, after message {update["sequence"]}</p>',
            *(f'<p class="problem">{in_html(note)}</p>' for note in notes if note),
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
    """The jobs in the order of the page's lanes: the live ones, then the newest."""
    return sorted(jobs, key=lambda job: (not job["live"], -job["decided_at_s"], job["job_id"]))


def _panel(title: str, content: str) -> str:
    return f'<section class="panel"><h2>{title}</h2>{content}</section>'


def _numbers(update: Mapping[str, Any], now_s: float) -> str:
    words = [expected_at(job, now_s)["promise"] for job in update["jobs"]]
    without_promise = (job for job, word in zip(update["jobs"], words, strict=True) if word == "none")
    num_failed = words.count("failed") + sum(job["activity"] == "failed" for job in without_promise)
    shown = {
        "GPUs used": f"{update['num_gpus_used']}<small> of {update['num_gpus']}</small>",
        "● Promises live": words.count("promised") + words.count("at risk"),
        "▲ At risk": words.count("at risk"),
        "✕ Broken": words.count("broken"),
        "✕ Failed": num_failed,
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
    policy = in_html(compared["policy"])
    said = f"<p>{changed} of {len(jobs)} jobs end otherwise under {policy}, which decides {begin}.</p>"
    return _panel(f"Another policy: {policy}", said + _table("Its jobs", _FATE_COLUMNS, map(cells, jobs)))


def _feed(feed: list[Mapping[str, Any]], now_s: float) -> str:
    """The newest first."""
    if not feed:
        return '<p class="empty">No decision so far.</p>'
    rows = (
        f"<li><time>{clock_time(row['at_s'], now_s=now_s)}</time>"
        f"<span><b>{in_html(row['name'])}</b> {in_html(row['text'])}</span></li>"
        for row in reversed(feed)
    )
    return f'<ol class="saved-feed">{"".join(rows)}</ol>'


def _table(title: str, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    head = "".join(f'<th scope="col">{name}</th>' for name in columns)
    body = "".join(
        f'<tr><th scope="row">{in_html(first)}</th>{"".join(f"<td>{in_html(cell)}</td>" for cell in others)}</tr>'
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
