// What a job like an earlier one would be promised now.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { useNewest } from "./newest.js";
import { PromiseLanes } from "./promise_lanes.js";
import { read, write } from "./requests.js";
import { clockTime, dollars, durationInWords, shortNumber } from "./words.js";

const SPACING_MS = 110; // admission answers 10 quotes a second of each tenant

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
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  const query = { like: model.job_id, iterations, batch };
  const { answer: last, problem, again } = useNewest((asked) => read("/api/quote", asked), query, SPACING_MS);
  const quote = problem && !again ? null : last;
  const change = (/** @type {(value: number) => void} */ set) => (/** @type {any} */ event) => {
    set(Number(event.target.value));
    setAnswer(null);
  };
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
            promised: quote.promised,
            deadline_s: atS + wantedS,
            finish_s: atS + earliestS,
            sentence: `the earliest deadline is in ${durationInWords(earliestS)}; yours is in ${durationInWords(wantedS)}${quote.promised.length ? "" : "; this admission does not say on which GPUs"}`,
          },
    );
  }, [quote, wantedS]);
  const fits = earliestS !== null && wantedS >= earliestS;
  const needs = ` GPU-seconds${quote?.gpu_type ? ` of type ${quote.gpu_type}` : ""}`;
  const reserved = answer?.accepted ? answer : null;
  const command = [
    `eflow submit ${quote?.target ?? "FILE"}`,
    reserved ? `--quote ${reserved.job_id}` : `--deadline ${wantedS}s`,
    `--iterations ${iterations}`,
    batch !== model.global_batch_size && `--batch ${batch}`,
    quote?.arguments && `-- ${quote.arguments}`,
  ]
    .filter(Boolean)
    .join(" ");
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
          onInput=${change(setIterations)}
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
          onInput=${change((power) => setBatch(Math.max(1, Math.round(model.global_batch_size * 2 ** power))))}
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
          onInput=${change(setDeadlineS)}
      /></label>
    </div>
    <div aria-live="polite">
      ${!quote && !problem && html`<p class="empty">Asking admission …</p>`}
      ${again && html`<p class="empty">Asking again, because of: ${problem}</p>`}
      ${!quote && problem && !again && html`<p class="problem">No quote: ${problem}</p>`}
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
          ${
            quote.price !== undefined &&
            html`<div class="wide">
              <dt>Price</dt>
              <dd>${dollars(quote.cost)}<small>${priceInWords(quote)}</small></dd>
            </div>`
          }
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
        ${answer.accepted ? reservedInWords(answer, nowS) : answer.text}
      </p>`
    }
  `;
}

/** @param {any} answer @param {number} nowS */
function reservedInWords(answer, nowS) {
  const deadline = `${clockTime(answer.deadline_s, nowS)} (in ${durationInWords(answer.deadline_s - nowS)})`;
  return `The deadline ${deadline} is reserved until ${clockTime(answer.until_s, nowS)}: the command above takes it.`;
}

/** @param {any} quote */
function priceInWords(quote) {
  const type = quote.priced_type || "GPU";
  return quote.price === null ? ` no price of a ${type}-hour is known` : ` at ${dollars(quote.price)} a ${type}-hour`;
}
