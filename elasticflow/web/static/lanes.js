// Draws promise lanes on a canvas: one lane a job. The height of a lane's bar is its number of GPUs.

import {
  clockTime,
  colourOf,
  counted,
  durationInWords,
  finishOf,
  marginOf,
  PROMISES,
  promiseOf,
  shortened,
} from "./words.js";

const [LEAST_LANE_PX, MOST_LANE_PX, FILLED_PX] = [48, 144, 240];
export const AXIS_PX = 26;
const LEAST_BAR_PX = 5;
const LEAST_OVERSHOOT_PX = 4;
const LABEL_PX = 24; // where names begin: the symbol of the promise is before them

/** @typedef {{fromS: number, toS: number}} Span */
/** Another policy on the same jobs; endS: up to which its last GPUs are drawn.
 * @typedef {{policy: string, jobs: Map<string, {steps: number[][], endS: number, symbol: string, sentence: string}>}} LaidOver */
/** @typedef {{jobs: any[], nowS: number, span: Span, first: number, selected: string, width: number, height: number,
 *   lanePx: number, labelPx: number, laidOver: LaidOver | null}} View */

/** The height of a lane: few lanes are taller. @param {number} numLanes */
export function lanePxOf(numLanes) {
  return Math.max(LEAST_LANE_PX, Math.min(MOST_LANE_PX, Math.floor(FILLED_PX / Math.max(1, numLanes))));
}

/** The times that show all of these jobs.
 * @param {any[]} jobs @param {number} nowS @param {LaidOver | null} laidOver @returns {Span} */
export function spanOf(jobs, nowS, laidOver) {
  let [fromS, toS] = [nowS - 60, nowS + 30];
  for (const job of jobs) {
    fromS = Math.min(fromS, job.steps.length ? job.steps[0][0] : job.decided_at_s);
    const other = laidOver?.jobs.get(job.job_id);
    toS = Math.max(toS, job.deadline_s ?? 0, job.ended_at_s ?? 0, finishOf(job, nowS) ?? 0);
    if (other?.steps.length) toS = Math.max(toS, other.endS);
  }
  const ahead = jobs.some((job) => job.live) ? 0.04 : 0.02;
  return { fromS: fromS - 0.01 * (toS - fromS), toS: toS + ahead * (toS - fromS) };
}

/** @param {CanvasRenderingContext2D} context @param {View} view @param {(name: string) => string} colour */
export function drawLanes(context, view, colour) {
  const { width, height, lanePx, labelPx, span } = view;
  const xOf = (/** @type {number} */ atS) =>
    labelPx + ((atS - span.fromS) / (span.toS - span.fromS)) * (width - labelPx);
  context.clearRect(0, 0, width, height);
  context.textBaseline = "middle";
  context.font = `12px ${FONT}`;
  drawTimes(context, view, colour, xOf);
  const most = mostGpus(view);
  const end = Math.min(view.jobs.length, view.first + Math.ceil(height / lanePx) + 1);
  for (let index = Math.floor(view.first); index < end; index += 1) {
    const top = AXIS_PX + (index - view.first) * lanePx;
    context.save();
    context.beginPath();
    context.rect(0, Math.max(AXIS_PX, top), width, lanePx);
    context.clip();
    drawLane(context, view, view.jobs[index], top, most, colour, xOf);
    context.restore();
  }
  const nowX = xOf(view.nowS);
  if (nowX >= labelPx) {
    context.fillStyle = colour("--text");
    context.fillRect(Math.round(nowX), AXIS_PX - 6, 1, height);
    context.textAlign = nowX > width - 40 ? "right" : "left";
    context.fillText("now", nowX + (nowX > width - 40 ? -4 : 4), AXIS_PX - 2);
  }
}

const FONT = "system-ui, sans-serif";
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400, 604800];
const DAY_S = 86_400;
const [TIME_PX, DATE_PX] = [74, 116]; // room for a time, and for one with its date

/** @param {CanvasRenderingContext2D} context @param {View} view @param {(name: string) => string} colour
 * @param {(atS: number) => number} xOf */
function drawTimes(context, view, colour, xOf) {
  context.textAlign = "center";
  const hasDates = [view.span.fromS, view.span.toS].some((atS) => clockTime(atS, view.nowS) !== clockTime(atS));
  const textPx = hasDates ? DATE_PX : TIME_PX;
  for (const atS of timesOf(view.span, Math.floor((view.width - view.labelPx) / textPx))) {
    const x = Math.round(xOf(atS));
    context.fillStyle = colour("--line");
    context.fillRect(x, AXIS_PX, 1, view.height);
    context.fillStyle = colour("--muted");
    const half = textPx / 2;
    if (x >= view.labelPx + half && x <= view.width - half) context.fillText(clockTime(atS, view.nowS), x, 9);
  }
}

/** Round times, so many at most: their texts do not overlap. @param {Span} span @param {number} most */
export function timesOf(span, most) {
  const lengthS = span.toS - span.fromS;
  const wanted = Math.max(1, most);
  const days = Math.ceil(lengthS / wanted / DAY_S);
  const stepS = STEPS_S.find((each) => lengthS / each <= wanted) ?? days * DAY_S;
  const first = Math.ceil(span.fromS / stepS);
  return Array.from({ length: Math.ceil(span.toS / stepS) - first }, (_, index) => (first + index) * stepS);
}

/** @param {CanvasRenderingContext2D} context @param {View} view @param {any} job @param {number} top
 * @param {number} most @param {(name: string) => string} colour @param {(atS: number) => number} xOf */
function drawLane(context, view, job, top, most, colour, xOf) {
  const { lanePx } = view;
  const bottom = top + lanePx - 6;
  const tall = (/** @type {number} */ gpus) => Math.max(LEAST_BAR_PX, ((lanePx - 10) * gpus) / most);
  if (job.job_id === view.selected) {
    context.fillStyle = colour("--selected");
    context.fillRect(0, top, view.width, lanePx);
  }
  context.fillStyle = colour("--line");
  context.fillRect(0, top + lanePx - 1, view.width, 1);
  context.save();
  context.beginPath();
  context.rect(view.labelPx, top, view.width - view.labelPx, lanePx);
  context.clip();
  const fill = colour(colourOf(job.job_id));
  const endS = job.ended_at_s ?? view.nowS;
  job.steps.forEach((/** @type {number[]} */ [fromS, gpus], /** @type {number} */ index) => {
    const toS = Math.min(job.steps[index + 1]?.[0] ?? endS, view.nowS);
    if (!gpus || toS <= fromS) return;
    const [x, length] = [xOf(fromS), Math.max(1, xOf(toS) - xOf(fromS))];
    context.fillStyle = fill;
    context.fillRect(x, bottom - tall(gpus), length, tall(gpus));
    if (length > 16 && tall(gpus) >= 12) {
      context.fillStyle = colour("--on-job");
      context.textAlign = "left";
      context.fillText(String(gpus), x + 4, bottom - tall(gpus) / 2);
    }
  });
  for (const [fromS, toS, gpus] of job.promised) {
    const x = xOf(Math.max(fromS, view.nowS));
    if (toS <= view.nowS) continue;
    context.strokeStyle = fill;
    context.lineWidth = 1.5;
    context.setLineDash([4, 3]);
    context.strokeRect(x + 1, bottom - tall(gpus), Math.max(1, xOf(toS) - x - 2), tall(gpus) - 1);
    context.setLineDash([]);
  }
  drawOther(context, view, job, bottom, tall, colour, xOf);
  drawDeadline(context, view, job, top, colour, xOf);
  context.restore();
  drawLabel(context, view, job, top, colour);
}

/** Of any job at any time, also under another policy; at least 1. @param {View} view */
function mostGpus(view) {
  let most = 1;
  for (const job of view.jobs) {
    for (const [, gpus] of job.steps) most = Math.max(most, gpus);
    for (const [, , gpus] of job.promised) most = Math.max(most, gpus);
    for (const [, gpus] of view.laidOver?.jobs.get(job.job_id)?.steps ?? []) most = Math.max(most, gpus);
  }
  return most;
}

/** The GPUs under another policy as an outline, and a sign at its end.
 * @param {CanvasRenderingContext2D} context @param {View} view @param {any} job @param {number} bottom
 * @param {(gpus: number) => number} tall @param {(name: string) => string} colour @param {(atS: number) => number} xOf */
function drawOther(context, view, job, bottom, tall, colour, xOf) {
  const other = view.laidOver?.jobs.get(job.job_id);
  if (!other?.steps.length) return;
  context.strokeStyle = context.fillStyle = colour("--text");
  context.lineWidth = 1;
  context.setLineDash([2, 3]);
  other.steps.forEach(([fromS, gpus], index) => {
    const [left, right] = [xOf(fromS), xOf(other.steps[index + 1]?.[0] ?? other.endS)];
    if (gpus) context.strokeRect(left + 0.5, bottom - tall(gpus) + 0.5, Math.max(1, right - left), tall(gpus));
  });
  context.setLineDash([]);
  context.textAlign = "left";
  context.fillText(other.symbol, xOf(other.endS) + 3, bottom - 8);
}

/** The deadline as a line, and the margin as the gap before it.
 * @param {CanvasRenderingContext2D} context @param {View} view @param {any} job @param {number} top
 * @param {(name: string) => string} colour @param {(atS: number) => number} xOf */
function drawDeadline(context, view, job, top, colour, xOf) {
  if (job.deadline_s === null) return;
  const tone = colour(`--${PROMISES[promiseOf(job, view.nowS)].tone}`);
  const x = Math.round(xOf(job.deadline_s));
  const [finishS, marginS] = [finishOf(job, view.nowS), marginOf(job, view.nowS)];
  if (finishS !== null && marginS !== null) {
    const [left, right] = [Math.min(xOf(finishS), x), Math.max(xOf(finishS), x)];
    const gap = marginS < 0 ? colour("--bad") : tone;
    if (marginS < 0) drawOvershoot(context, x, right, top, view.lanePx, gap);
    context.strokeStyle = gap;
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(left, top + view.lanePx / 2);
    context.lineTo(right, top + view.lanePx / 2);
    context.moveTo(xOf(finishS), top + view.lanePx / 2 - 4);
    context.lineTo(xOf(finishS), top + view.lanePx / 2 + 4);
    context.stroke();
    const text = marginS < 0 ? `${durationInWords(-marginS)} late` : durationInWords(marginS);
    const half = context.measureText(text).width / 2 + 6;
    const middle = middleOf(left, right, half, xOf(view.nowS)) ?? (marginS < 0 ? besideOf(left, right, half, view) : null);
    if (middle !== null) {
      context.fillStyle = colour("--panel");
      context.fillRect(middle - half + 3, top + view.lanePx / 2 - 16, 2 * half - 6, 14);
      context.fillStyle = gap;
      context.textAlign = "center";
      context.fillText(text, middle, top + view.lanePx / 2 - 8);
    }
  }
  context.fillStyle = tone;
  context.fillRect(x - 1, top + 4, 2, view.lanePx - 10);
  context.beginPath();
  context.moveTo(x - 5, top + 4);
  context.lineTo(x + 5, top + 4);
  context.lineTo(x, top + 10);
  context.fill();
}

/** The time after the deadline that a late job took or will take; as short as it may be, it is seen.
 * @param {CanvasRenderingContext2D} context @param {number} deadlineX @param {number} finishX @param {number} top
 * @param {number} lanePx @param {string} colour */
function drawOvershoot(context, deadlineX, finishX, top, lanePx, colour) {
  context.save();
  context.globalAlpha = 0.25;
  context.fillStyle = colour;
  context.fillRect(deadlineX, top + 4, Math.max(LEAST_OVERSHOOT_PX, finishX - deadlineX), lanePx - 10);
  context.restore();
}

/** The middle of a text that has no room between two ends: right of them, or left at the edge of the lanes.
 * @param {number} left @param {number} right @param {number} half @param {View} view */
export function besideOf(left, right, half, view) {
  return right + 2 * half < view.width ? right + half : left - half;
}

/** The middle of a text between two ends, where the line of the present does not cross it; null if it has no room.
 * @param {number} left @param {number} right @param {number} half its width, halved @param {number} nowX */
function middleOf(left, right, half, nowX) {
  const middle = (left + right) / 2;
  if (right - left > 2 * half && Math.abs(nowX - middle) >= half) return middle;
  if (nowX >= left && nowX + 2 * half < right) return nowX + half;
  return nowX <= right && nowX - 2 * half > left ? nowX - half : null;
}

/** @param {CanvasRenderingContext2D} context @param {View} view @param {any} job @param {number} top
 * @param {(name: string) => string} colour */
function drawLabel(context, view, job, top, colour) {
  const promise = PROMISES[promiseOf(job, view.nowS)];
  context.save();
  context.beginPath();
  context.rect(0, top, view.labelPx - 8, view.lanePx);
  context.clip();
  context.textAlign = "left";
  context.fillStyle = colour(`--${promise.tone}`);
  context.fillText(promise.symbol, 8, top + 17);
  context.fillStyle = colour("--text");
  context.font = `600 13px ${FONT}`;
  const widthPx = view.labelPx - 8 - LABEL_PX;
  const fits = (/** @type {string} */ text) => context.measureText(text).width <= widthPx;
  context.fillText(shortened(job.job_id, fits), LABEL_PX, top + 17);
  context.font = `12px ${FONT}`;
  context.fillStyle = colour("--muted");
  const gpus = job.num_gpus ? counted(job.num_gpus, "GPU") : "";
  const parts = [job.swept_in_words, job.activity, gpus].filter(Boolean);
  const wanted = [parts, parts.slice(0, 2), [job.swept_in_words || gpus || job.activity]].map((some) => some.join(" · "));
  context.fillText(shortened(wanted.find(fits) ?? wanted[2], fits), LABEL_PX, top + 33);
  context.restore();
}
