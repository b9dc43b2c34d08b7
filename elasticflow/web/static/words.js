// Times and numbers in words, as the command line writes them.

/** @param {number} seconds @returns {string} the two largest units: "4m 10s", "2h 05m"; "12.4s" below a minute */
export function durationInWords(seconds) {
  const sign = seconds < 0 ? "-" : "";
  const length = Math.abs(seconds);
  if (length < 59.95) return `${sign}${length.toFixed(1)}s`;
  const whole = Math.round(length);
  const two = (/** @type {number} */ part) => String(part).padStart(2, "0");
  if (whole < 3600) return `${sign}${Math.floor(whole / 60)}m ${two(whole % 60)}s`;
  if (whole < 86400) return `${sign}${Math.floor(whole / 3600)}h ${two(Math.floor((whole % 3600) / 60))}m`;
  return `${sign}${Math.floor(whole / 86400)}d ${two(Math.floor((whole % 86400) / 3600))}h`;
}

const timeOfDay = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const day = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

/** @param {number} atS @param {number} [nowS] with it, the date is added on another day */
export function clockTime(atS, nowS) {
  const moment = new Date(atS * 1000);
  const isOtherDay = nowS !== undefined && new Date(nowS * 1000).toDateString() !== moment.toDateString();
  return isOtherDay ? `${day.format(moment)} ${timeOfDay.format(moment)}` : timeOfDay.format(moment);
}

/** @param {number} count @param {string} noun */
export function counted(count, noun) {
  return `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;
}

/** @param {number | null | undefined} value */
export function shortNumber(value) {
  if (value === null || value === undefined) return "–";
  return Math.abs(value) >= 1000 ? Math.round(value).toLocaleString("en") : Number(value.toPrecision(3)).toString();
}

/** @param {number | null | undefined} value */
export function dollars(value) {
  if (value === null || value === undefined) return "–";
  return value.toLocaleString("en", { style: "currency", currency: "USD" });
}

// A promise has a symbol and a word beside its colour.
export const PROMISES = {
  live: { symbol: "●", word: "promised", tone: "good" },
  "at risk": { symbol: "▲", word: "at risk", tone: "risk" },
  broken: { symbol: "✕", word: "broken", tone: "bad" },
  kept: { symbol: "✓", word: "kept", tone: "good" },
  void: { symbol: "○", word: "ended early", tone: "none" },
  "": { symbol: "·", word: "no promise", tone: "none" },
};

/** What the promise of a job is at one time: a live one whose deadline has passed is broken.
 * @param {any} job @param {number} nowS @returns {keyof typeof PROMISES} */
export function promiseOf(job, nowS) {
  return job.live && job.promise !== "" && job.deadline_s < nowS ? "broken" : job.promise;
}

/** Expected finish of a live job at one time: its estimate is never in the past.
 * @param {any} job @param {number} nowS @returns {number | null} */
export function finishOf(job, nowS) {
  if (job.expected_finish_s === null || !job.live) return job.expected_finish_s;
  return Math.max(nowS, job.expected_finish_s);
}

/** @param {any} job @param {number} nowS @returns {number | null} */
export function marginOf(job, nowS) {
  const finishS = finishOf(job, nowS);
  return job.margin_s === null || finishS === null ? null : job.deadline_s - finishS;
}

const NUM_COLOURS = 8;
/** @type {Map<string, string>} */
const colours = new Map();

/** The colour of a job: the same on all pages, and another one for each of eight jobs in a row. @param {string} name */
export function colourOf(name) {
  const known = colours.get(name) ?? `--job-${colours.size % NUM_COLOURS}`;
  colours.set(name, known);
  return known;
}
