// Promise lanes: the canvas with its keyboard and mouse, the sentence of the selected job, and the table behind.

import { html, useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";
import { JobTable } from "./job_table.js";
import { asLane, LaneFilter, LaneLegend, LaneZoom, lanesOf, moved, zoomed } from "./lane_tools.js";
import { AXIS_PX, drawLanes, lanePxOf, spanOf } from "./lanes.js";
import { counted, sentenceOf } from "./words.js";

const MAX_HEIGHT_PX = 520;
const FITTED_LANES = 200; // lanes further down do not widen the time that is shown

/** isOne: of one job, without filter and legend.
 * @param {{jobs: Map<string, any>, quotes: any[], nowS: number, isOne?: boolean,
 *   laidOver?: import("./lanes.js").LaidOver | null}} props */
export function PromiseLanes({ jobs, quotes, nowS, isOne = false, laidOver = null }) {
  const [filter, setFilter] = useState("");
  const [shown, setShown] = useState(isOne ? "all" : "recent");
  const [selected, setSelected] = useState("");
  const [span, setSpan] = useState(/** @type {import("./lanes.js").Span | null} */ (null));
  const reserved = quotes.filter((quote) => (quote.until_s ?? nowS) >= nowS);
  const lanes = lanesOf([...reserved.map(asLane), ...jobs.values()], shown, filter, nowS);
  const fitted = span ?? spanOf(lanes.slice(0, FITTED_LANES), nowS, laidOver);
  const view = { jobs: lanes, nowS, span: fitted, selected, laidOver };
  const chosen = lanes.find((job) => job.job_id === selected);
  const other = laidOver?.jobs.get(selected)?.sentence;
  return html`
    <section class="panel" aria-labelledby="lanes-title">
      <div class="tools">
        <h2 id="lanes-title">${isOne ? "Its lane" : "Promise lanes"}</h2>
        ${!isOne && html`<${LaneFilter} shown=${shown} filter=${filter} onShown=${setShown} onFilter=${setFilter} />`}
        <${LaneZoom} span=${view.span} isFitted=${span === null} onSpan=${setSpan} />
      </div>
      <${LaneCanvas} view=${view} onSelect=${setSelected} onSpan=${setSpan} />
      <p class="sentence" aria-live="polite">${chosen ? html`<b>${chosen.job_id}</b> ${sentenceOf(chosen, nowS)}${other && `; ${other}`}` : KEYS}</p>
      ${!isOne && html`<${LaneLegend} policy=${laidOver?.policy} />`}
      <${JobTable} jobs=${lanes} nowS=${nowS} />
    </section>
  `;
}

const KEYS = "Arrows select and move, Enter opens, + and − zoom, 0 fits.";

/** @typedef {Omit<import("./lanes.js").View, "first" | "width" | "height" | "lanePx" | "labelPx">} Shown */

/** @param {{view: Shown, onSelect: (name: string) => void,
 *   onSpan: (span: import("./lanes.js").Span | null) => void}} props */
function LaneCanvas({ view, onSelect, onSpan }) {
  const { jobs, span, selected } = view;
  const canvas = useRef(/** @type {HTMLCanvasElement | null} */ (null));
  const [wantedFirst, setFirst] = useState(0);
  const width = useWidth(canvas);
  const lanePx = lanePxOf(jobs.length);
  const height = Math.min(MAX_HEIGHT_PX, AXIS_PX + Math.max(1, jobs.length) * lanePx + 2);
  const numFit = Math.floor((height - AXIS_PX) / lanePx);
  const mostFirst = Math.max(0, jobs.length - numFit);
  const first = Math.min(wantedFirst, mostFirst);
  const labelPx = width < 560 ? 140 : 190;
  useLayoutEffect(() => draw(canvas.current, { ...view, first, width, height, lanePx, labelPx }));

  const index = jobs.findIndex((job) => job.job_id === selected);
  const select = (/** @type {number} */ wanted) => {
    const bounded = Math.max(0, Math.min(jobs.length - 1, wanted));
    if (jobs.length === 0) return;
    onSelect(jobs[bounded].job_id);
    setFirst(Math.min(Math.max(first, bounded - numFit + 1), bounded));
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    const action = keyActions({ jobs, span, index, select, onSpan })[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey || !action) return;
    event.preventDefault();
    action();
  };
  const laneOf = (/** @type {MouseEvent} */ event) => {
    const box = /** @type {HTMLElement} */ (canvas.current).getBoundingClientRect();
    return jobs[Math.floor((event.clientY - box.top - AXIS_PX) / lanePx + first)];
  };
  const onWheel = (/** @type {WheelEvent} */ event) => {
    const canScroll = event.deltaY < 0 ? first > 0 : first < mostFirst;
    if (!event.ctrlKey && !canScroll) return;
    event.preventDefault();
    if (!event.ctrlKey) {
      setFirst(Math.max(0, Math.min(mostFirst, first + event.deltaY / lanePx)));
      return;
    }
    const part = (event.offsetX - labelPx) / (width - labelPx);
    onSpan(zoomed(span, event.deltaY < 0 ? 0.85 : 1.18, Math.max(0, Math.min(1, part))));
  };
  return html`
    <div
      class="lanes"
      tabindex="0"
      role="group"
      aria-label=${`Lanes of ${counted(jobs.length, "job")}. ${KEYS}`}
      onKeyDown=${onKey}
      onWheel=${onWheel}
    >
      <canvas
        ref=${canvas}
        aria-hidden="true"
        onMouseMove=${(/** @type {MouseEvent} */ event) => onSelect(laneOf(event)?.job_id ?? selected)}
        onClick=${(/** @type {MouseEvent} */ event) => open(laneOf(event))}
      ></canvas>
      ${jobs.length === 0 && html`<p class="empty">No job to show. <code>eflow submit</code> starts one.</p>`}
    </div>
  `;
}

/** @param {{jobs: any[], span: import("./lanes.js").Span, index: number, select: (wanted: number) => void,
 *   onSpan: (span: import("./lanes.js").Span | null) => void}} lanes @returns {Record<string, () => void>} */
function keyActions({ jobs, span, index, select, onSpan }) {
  return {
    ArrowDown: () => select(index + 1),
    ArrowUp: () => select(index - 1),
    PageDown: () => select(index + 10),
    PageUp: () => select(index - 10),
    Home: () => select(0),
    End: () => select(jobs.length - 1),
    Enter: () => open(jobs[index]),
    "+": () => onSpan(zoomed(span, 0.7, 0.5)),
    "-": () => onSpan(zoomed(span, 1.4, 0.5)),
    ArrowLeft: () => onSpan(moved(span, -0.1)),
    ArrowRight: () => onSpan(moved(span, 0.1)),
    0: () => onSpan(null),
  };
}

/** @param {any} job */
function open(job) {
  if (job && !job.is_quote) location.hash = `#/job/${encodeURIComponent(job.job_id)}`;
}

/** The width of the element around a canvas. @param {{current: HTMLCanvasElement | null}} canvas */
function useWidth(canvas) {
  const [width, setWidth] = useState(0);
  useEffect(() => {
    const around = /** @type {HTMLElement} */ (canvas.current?.parentElement);
    const watch = new ResizeObserver(() => setWidth(around.clientWidth));
    watch.observe(around);
    return () => watch.disconnect();
  }, []);
  return width;
}

/** @param {HTMLCanvasElement | null} canvas @param {import("./lanes.js").View} view */
function draw(canvas, view) {
  const context = canvas?.getContext("2d");
  if (!canvas || !context || !view.width) return;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(view.width * scale) || canvas.height !== Math.round(view.height * scale)) {
    canvas.width = Math.round(view.width * scale);
    canvas.height = Math.round(view.height * scale);
    canvas.style.width = `${view.width}px`;
    canvas.style.height = `${view.height}px`;
  }
  context.setTransform(scale, 0, 0, scale, 0, 0);
  const style = getComputedStyle(document.documentElement);
  /** @type {Record<string, string>} */ const known = {};
  drawLanes(context, view, (name) => (known[name] ??= style.getPropertyValue(name)));
}
