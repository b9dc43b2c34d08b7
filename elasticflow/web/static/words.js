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

/** @param {number} numBytes @returns {string} the memory of a GPU: "79.6 GiB", "4,096 GiB" */
export function gibInWords(numBytes) {
  const gib = numBytes / 2 ** 30;
  return `${gib < 1000 ? Number(gib.toPrecision(3)) : Math.round(gib).toLocaleString("en")} GiB`;
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

// A promise has a symbol and a word beside its colour. The server decides which one it is, see page_values.py.
export const PROMISES = {
  promised: { symbol: "●", word: "promised", tone: "good" },
  "at risk": { symbol: "▲", word: "at risk", tone: "risk" },
  broken: { symbol: "✕", word: "broken", tone: "bad" },
  failed: { symbol: "✕", word: "failed", tone: "bad" },
  kept: { symbol: "✓", word: "kept", tone: "good" },
  cancelled: { symbol: "○", word: "cancelled", tone: "none" },
  none: { symbol: "·", word: "no promise", tone: "none" },
};

/** What the server expects of a job at one time, as long as nothing new is reported.
 * @param {any} job @param {number} nowS @returns {any} */
export function expectedOf(job, nowS) {
  return job.expectations.findLast((/** @type {any} */ each) => each.after_s < nowS) ?? job.expectations[0];
}

/** @param {any} job @param {number} nowS @returns {keyof typeof PROMISES} */
export function promiseOf(job, nowS) {
  return expectedOf(job, nowS).promise;
}

/** Its end; or the expected one at this time, which is never in the past.
 * @param {any} job @param {number} nowS @returns {number | null} */
export function finishOf(job, nowS) {
  const finishS = expectedOf(job, nowS).finish_s;
  return finishS === null || !job.live ? finishS : Math.max(nowS, finishS);
}

/** @param {any} job @param {number} nowS @returns {number | null} */
export function marginOf(job, nowS) {
  const finishS = finishOf(job, nowS);
  return finishS === null || !expectedOf(job, nowS).has_margin ? null : job.deadline_s - finishS;
}

/** As "running on 4 GPUs, iteration 120 of 300; the expected finish is 51.0s before its deadline".
 * @param {any} job @param {number} nowS @returns {string} */
export function sentenceOf(job, nowS) {
  const [marginS, sinceS] = [marginOf(job, nowS), expectedOf(job, nowS).silent_since_s];
  const finish = job.live ? "the expected finish is" : "it ended";
  return [
    job.sentence,
    sinceS != null && `no progress reported for ${durationInWords(nowS - sinceS)}`,
    marginS !== null &&
      !job.is_quote &&
      `${finish} ${durationInWords(Math.abs(marginS))} ${marginS >= 0 ? "before" : "after"} its deadline`,
    job.explanation,
  ]
    .filter(Boolean)
    .join("; ");
}

/** The text without its middle if it is longer: the names of one sweep differ at their ends.
 * @param {string} text @param {(text: string) => boolean} fits @returns {string} */
export function shortened(text, fits) {
  let shown = text;
  for (let length = text.length - 1; length > 2 && !fits(shown); length -= 1) {
    const head = Math.floor((length * 2) / 5);
    shown = `${text.slice(0, head)}…${text.slice(text.length - (length - head))}`;
  }
  return shown;
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
