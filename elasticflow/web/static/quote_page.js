// What a job like an earlier one would be promised now.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { PromiseLanes } from "./promise_lanes.js";
import { read, write } from "./requests.js";
import { clockTime, durationInWords, shortNumber } from "./words.js";

const SETTLE_MS = 20;

/** @param {{store: import("./store.js").PoolStore, session: any, nowS: number}} props */
export function QuotePage({ store, session, nowS }) {
  const known = [...store.pool.jobs.values()]
    .filter((job) => job.submittable)
    .sort((a, b) => b.decided_at_s - a.decided_at_s);
  const [like, setLike] = useState("");
  const [asked, setAsked] = useState(/** @type {any} */ (null));
  const model = known.find((job) => job.job_id === like) ?? known[0];
  const isLive = session.sources[store.source].is_live;
  if (!isLive || !model) {
    const why = isLive
      ? "No job was submitted so far: a quote is for a job like an earlier one."
      : "A file gives no quotes; a live pool does.";
    return html`<h1>Quote</h1>
      <p class="empty">${why}</p>`;
  }
  return html`
    <h1>Quote</h1>
    <section class="panel" aria-label="The job">
      <label
        >A job like
        <select value=${model.job_id} onChange=${(/** @type {any} */ event) => setLike(event.target.value)}>
          ${known.slice(0, 100).map((job) => html`<option value=${job.job_id}>${job.job_id}</option>`)}
        </select></label
      >
      <${Sliders} key=${model.job_id} model=${model} operator=${session.operator} nowS=${nowS} onQuote=${setAsked} />
    </section>
    <${PromiseLanes}
      jobs=${store.pool.jobs}
      quotes=${asked ? [asked, ...store.pool.quotes] : store.pool.quotes}
      nowS=${nowS}
    />
  `;
}

/** onQuote: gets the lane to draw; its margin is the time between the earliest deadline and the wanted one.
 * @param {{model: any, operator: boolean, nowS: number, onQuote: (lane: any) => void}} props */
function Sliders({ model, operator, nowS, onQuote }) {
  const [iterations, setIterations] = useState(model.max_iterations);
  const [batch, setBatch] = useState(model.global_batch_size);
  const [deadlineS, setDeadlineS] = useState(/** @type {number | null} */ (null));
  const [quote, setQuote] = useState(/** @type {any} */ (null));
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  const query = { like: model.job_id, iterations, batch };
  useEffect(() => {
    const abort = new AbortController();
    const ask = async () => {
      try {
        setQuote(await read("/api/quote", query, abort.signal));
      } catch (error) {
        if (!abort.signal.aborted) setQuote({ earliest_deadline_s: null, explanation: String(error) });
      }
    };
    const timer = setTimeout(ask, SETTLE_MS);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [iterations, batch]);
  const earliestS = quote?.earliest_deadline_s ? Math.ceil(quote.earliest_deadline_s - quote.at_s) : null;
  const wantedS = deadlineS ?? earliestS ?? 60;
  useEffect(() => {
    const atS = quote?.at_s ?? 0;
    onQuote(
      earliestS === null
        ? null
        : {
            job_id: `like ${model.job_id}`,
            activity: "quote",
            promised: [],
            deadline_s: atS + wantedS,
            expected_finish_s: atS + earliestS,
            margin_s: wantedS - earliestS,
            sentence: `the earliest deadline is in ${durationInWords(earliestS)}; yours is in ${durationInWords(wantedS)}`,
          },
    );
  }, [quote, wantedS]);
  const fits = earliestS !== null && wantedS >= earliestS;
  const needs = ` GPU-seconds${quote?.gpu_type ? ` of type ${quote.gpu_type}` : ""}`;
  const command = `eflow submit FILE --deadline ${wantedS}s --iterations ${iterations}${batch === model.global_batch_size ? "" : ` --batch ${batch}`}`;
  const reserve = async () => {
    try {
      setAnswer(await write("/api/quote", {}, query));
    } catch (error) {
      setAnswer({ accepted: false, text: String(error) });
    }
  };
  const mostIterations = Math.max(10 * model.max_iterations, 100);
  return html`
    <div class="sliders">
      <label
        >Iterations <output>${iterations.toLocaleString("en")}</output>
        <input
          type="range"
          aria-label="Iterations"
          min="1"
          max=${mostIterations}
          value=${iterations}
          onInput=${(/** @type {any} */ event) => setIterations(Number(event.target.value))}
      /></label>
      <label
        >Global batch <output>${batch}</output>
        <input
          type="range"
          aria-label="Global batch"
          min="-3"
          max="3"
          value=${Math.log2(batch / model.global_batch_size)}
          aria-valuetext=${`${batch} samples`}
          onInput=${(/** @type {any} */ event) => setBatch(Math.max(1, Math.round(model.global_batch_size * 2 ** Number(event.target.value))))}
      /></label>
      <label
        >Deadline <output>${durationInWords(wantedS)}</output>
        <input
          type="range"
          aria-label="Deadline"
          min="1"
          max=${Math.max(600, 4 * (earliestS ?? 150))}
          value=${wantedS}
          aria-valuetext=${durationInWords(wantedS)}
          onInput=${(/** @type {any} */ event) => setDeadlineS(Number(event.target.value))}
      /></label>
    </div>
    <div aria-live="polite">
      ${quote === null && html`<p class="empty">Asking admission …</p>`}
      ${quote && earliestS === null && html`<p class="problem">No quote: ${quote.explanation}</p>`}
      ${
        quote &&
        earliestS !== null &&
        html` <dl class="numbers quote">
          <div class="wide">
            <dt>Earliest deadline</dt>
            <dd>${durationInWords(earliestS)}<small> at ${clockTime(quote.earliest_deadline_s, nowS)}</small></dd>
          </div>
          <div class="wide">
            <dt>Needs</dt>
            <dd>${shortNumber(quote.gpu_seconds)}<small>${needs}</small></dd>
          </div>
          <div class="wide">
            <dt>Your deadline</dt>
            <dd>
              <span class=${`chip ${fits ? "good" : "bad"}`}>${fits ? "✓ would be promised" : "✕ too early"}</span>
            </dd>
          </div>
        </dl>`
      }
    </div>
    <div class="command">
      <code>${command}</code>
      <button onClick=${() => navigator.clipboard.writeText(command)}>Copy</button>
      ${operator && html`<button class="primary" disabled=${earliestS === null} onClick=${reserve}>Reserve for 5 minutes</button>`}
    </div>
    ${
      answer &&
      html`<p class=${answer.accepted ? "done" : "problem"} role="status">
        ${
          answer.accepted
            ? `Reserved until ${clockTime(answer.until_s)}: add --quote ${answer.job_id} to the command.`
            : answer.text
        }
      </p>`
    }
  `;
}
