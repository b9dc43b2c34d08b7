"""The lanes of the saved page: elements placed in percent, since it holds no script that could draw."""

from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

from elasticflow.history.formatting import shortened
from elasticflow.sdk.times import clock_time
from elasticflow.web.expectations import expected_at, finish_at, sentence_at

MAX_LANES = 200
_NUM_COLOURS = 8
_LABEL = 24  # characters of a name beside its lane
_NUMBERED_PART = 0.04  # of the time that is shown: a shorter bar has no room for its number
PROMISES = {  # as in words.js: symbol, word, tone
    "promised": ("●", "promised", "good"),
    "at risk": ("▲", "at risk", "risk"),
    "broken": ("✕", "broken", "bad"),
    "kept": ("✓", "kept", "good"),
    "failed": ("✕", "failed", "bad"),
    "cancelled": ("○", "cancelled", "none"),
    "none": ("·", "no promise", "none"),
}


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
        name = escape(shortened(job["job_id"], _LABEL))
        yield f"<li><span><b>{symbol} {name}</b><small>{escape(under)}</small></span>"
        yield f'<span class="track" role="img" aria-label="{escape(sentence_at(job, now_s))}">'
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
        f'<li><i class="dashed other"></i>GPUs under {escape(compared["policy"])}, modelled</li>' if compared else ""
    )
    legend = (
        '<ul class="legend"><li><i class="solid"></i>GPUs held</li><li><i class="dashed"></i>GPUs promised</li>'
        f'{under}<li><i class="deadline"></i>deadline</li><li>● promised ▲ at risk ✕ broken or failed ✓ kept</li></ul>'
    )
    return f'<ol class="saved-lanes">{rows}</ol><p class="scale">{scale}</p>{left_out}{legend}'


def _other(job: Mapping[str, Any], compared: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """Its GPUs under the other policy: start, end, number."""
    steps: list[tuple[float, int]] = job["other_gpus"]
    last_s = compared["modelled_until_s"] if job["other_end_s"] is None else job["other_end_s"]
    ends_s = [*(start_s for start_s, _ in steps[1:]), last_s]
    return [(start_s, end_s, gpus) for (start_s, gpus), end_s in zip(steps, ends_s, strict=False)]
