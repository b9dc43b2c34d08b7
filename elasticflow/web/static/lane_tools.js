// What stands around the lanes: which jobs they show, the zoom, and the legend.

import { html } from "./vendor/preact-htm.js";
import { promiseOf } from "./words.js";

const RECENT_S = 3600;

/** @type {Record<string, {title: string, shows: (job: any, nowS: number) => boolean}>} */
export const SHOWN = {
  recent: { title: "live and recent", shows: (job, nowS) => job.live || nowS - job.ended_at_s < RECENT_S },
  live: { title: "live", shows: (job) => job.live },
  promised: { title: "with a promise", shows: (job, nowS) => promiseOf(job, nowS) !== "none" },
  danger: {
    title: "at risk, broken or failed",
    shows: (job, nowS) => ["at risk", "broken", "failed"].includes(promiseOf(job, nowS)),
  },
  all: { title: "all", shows: () => true },
};

/** Which of the jobs are shown, in the order of the lanes: live ones first, then the newest.
 * @param {any[]} jobs @param {string} shown @param {string} filter @param {number} nowS */
export function lanesOf(jobs, shown, filter, nowS) {
  return jobs
    .filter((job) => job.job_id.includes(filter) && SHOWN[shown].shows(job, nowS))
    .sort(
      (a, b) => Number(b.live) - Number(a.live) || b.decided_at_s - a.decided_at_s || (a.job_id < b.job_id ? -1 : 1),
    );
}

/** A quote, reserved or only asked for, as a lane of its own. finish_s: expected, of one that is asked for.
 * @param {any} quote */
export function asLane(quote) {
  const finishS = quote.finish_s ?? null;
  return {
    activity: "reserved",
    sentence: "a reserved quote",
    ...quote,
    expectations: [{ after_s: 0, promise: "promised", finish_s: finishS, has_margin: finishS !== null }],
    is_quote: true,
    steps: [],
    live: true,
    num_gpus: 0,
    decided_at_s: quote.deadline_s,
    ended_at_s: null,
  };
}

/** @param {{shown: string, filter: string, onShown: (shown: string) => void, onFilter: (filter: string) => void}} props */
export function LaneFilter({ shown, filter, onShown, onFilter }) {
  return html`
    <label
      >Show
      <select value=${shown} onChange=${(/** @type {any} */ event) => onShown(event.target.value)}>
        ${Object.entries(SHOWN).map(([name, each]) => html`<option value=${name}>${each.title}</option>`)}
      </select>
    </label>
    <label
      >Filter
      <input
        type="search"
        value=${filter}
        placeholder="job name"
        onInput=${(/** @type {any} */ event) => onFilter(event.target.value)}
      />
    </label>
  `;
}

/** @param {{span: import("./lanes.js").Span, isFitted: boolean, onSpan: (span: import("./lanes.js").Span | null) => void}} props */
export function LaneZoom({ span, isFitted, onSpan }) {
  return html`
    <span class="buttons">
      <button onClick=${() => onSpan(zoomed(span, 0.7, 0.5))} aria-label="Zoom in">+</button>
      <button onClick=${() => onSpan(zoomed(span, 1.4, 0.5))} aria-label="Zoom out">−</button>
      <button onClick=${() => onSpan(moved(span, -0.2))} aria-label="Earlier">←</button>
      <button onClick=${() => onSpan(moved(span, 0.2))} aria-label="Later">→</button>
      <button onClick=${() => onSpan(null)} disabled=${isFitted}>Fit</button>
    </span>
  `;
}

const AT_RISK =
  "No plan keeps the promise with the pool's margin, or the job is stalled. At its speed now it may end in time.";

/** policy: that is laid over the lanes. @param {{policy?: string}} props */
export function LaneLegend({ policy }) {
  return html`
    <ul class="legend" aria-label="Legend">
      <li><i class="solid"></i>GPUs held</li>
      <li><i class="dashed"></i>GPUs promised</li>
      ${policy && html`<li><i class="dashed other"></i>GPUs under ${policy}, modelled</li>`}
      <li><i class="deadline"></i>deadline; the line to it is the margin</li>
      <li>● promised <span title=${AT_RISK}>▲ at risk</span> ✕ broken or failed ✓ kept</li>
    </ul>
  `;
}

/** part: of the span, from 0 to 1, that stays where it is.
 * @param {import("./lanes.js").Span} span @param {number} factor @param {number} part */
export function zoomed(span, factor, part) {
  const centreS = span.fromS + part * (span.toS - span.fromS);
  const lengthS = Math.max(2, (span.toS - span.fromS) * factor);
  return { fromS: centreS - part * lengthS, toS: centreS + (1 - part) * lengthS };
}

/** @param {import("./lanes.js").Span} span @param {number} part */
export function moved(span, part) {
  const byS = part * (span.toS - span.fromS);
  return { fromS: span.fromS + byS, toS: span.toS + byS };
}
