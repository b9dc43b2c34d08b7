// Another policy on the ledger of a replay: its jobs, beside those of the record, and what is laid over the lanes.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { write } from "./requests.js";
import { clockTime, durationInWords } from "./words.js";

const MAX_ROWS = 200;
/** @type {Record<string, {symbol: string, tone: string}>} */
const FATES = {
  met: { symbol: "✓", tone: "good" },
  finished: { symbol: "✓", tone: "good" },
  late: { symbol: "✕", tone: "bad" },
  failed: { symbol: "✕", tone: "bad" },
};
const WHOSE = ["recorded", "modelled", "other"];

/** What the lanes draw of a comparison: by job, its GPUs and its end under the other policy. @param {any} compared
 * @returns {import("./lanes.js").LaidOver} */
export function laidOver(compared) {
  return {
    policy: compared.policy,
    jobs: new Map(
      compared.jobs.map((/** @type {any} */ job) => [
        job.job_id,
        {
          steps: job.other_gpus,
          endS: job.other_end_s ?? compared.modelled_until_s,
          symbol: job.other_end_s === null ? "" : (FATES[job.other]?.symbol ?? ""),
          sentence: `under ${compared.policy}: ${inWords(job.other, job.other_end_s, job.deadline_s)}`,
        },
      ]),
    ),
  };
}

/** As "late at 10:04:05, 12.0s after its deadline". @param {string} fate @param {number | null} endS
 * @param {number | null} deadlineS */
function inWords(fate, endS, deadlineS) {
  if (endS === null && fate === "late") return "late, not ended";
  if (endS === null || fate === "rejected") return fate;
  const lateS = fate === "late" && deadlineS !== null ? `, ${durationInWords(endS - deadlineS)} after its deadline` : "";
  return `${fate} at ${clockTime(endS)}${lateS}`;
}

/** sequence: of the message at which the replay stands.
 * @param {{source: string, policies: string[], sequence: number, compared: any, onCompared: (compared: any) => void}} props */
export function OtherPolicy({ source, policies, sequence, compared, onCompared }) {
  const [policy, setPolicy] = useState("edf");
  const [isFromHere, setFromHere] = useState(false);
  const [isBusy, setBusy] = useState(false);
  const [problem, setProblem] = useState("");
  const running = useRef(/** @type {AbortController | null} */ (null));
  useEffect(() => () => running.current?.abort(), []);
  const compare = async () => {
    const { signal } = (running.current = new AbortController());
    setBusy(true);
    setProblem("");
    try {
      const query = { source, policy, from: isFromHere ? sequence : 0 };
      onCompared(await write("/api/other-policy", {}, query, signal));
    } catch (error) {
      if (!signal.aborted) setProblem(String(error));
    }
    setBusy(false);
  };
  return html`
    <section class="panel" aria-labelledby="policy-title">
      <div class="tools">
        <h2 id="policy-title">Another policy</h2>
        <label
          >Policy
          <select value=${policy} onChange=${(/** @type {any} */ event) => setPolicy(event.target.value)}>
            ${policies.map((each) => html`<option value=${each}>${each}</option>`)}
          </select></label
        >
        <label
          >It decides
          <select
            value=${isFromHere ? "here" : "start"}
            onChange=${(/** @type {any} */ event) => setFromHere(event.target.value === "here")}
          >
            <option value="start">from the start</option>
            <option value="here">after message ${sequence}</option>
          </select></label
        >
        <span class="buttons">
          <button disabled=${isBusy} onClick=${compare}>${isBusy ? "Computing …" : "Lay over"}</button>
          ${isBusy && html`<button onClick=${() => running.current?.abort()}>Stop</button>`}
          ${compared && !isBusy && html`<button onClick=${() => onCompared(null)}>Remove</button>`}
        </span>
      </div>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div aria-live="polite">${compared && html`<${Compared} compared=${compared} />`}</div>
    </section>
  `;
}

/** @param {{compared: any}} props */
function Compared({ compared }) {
  const fates = [...new Set(WHOSE.flatMap((whose) => Object.keys(compared.counts[whose])))];
  const differs = (/** @type {any} */ job) => Number(job.modelled !== job.other);
  const jobs = [...compared.jobs].sort((a, b) => differs(b) - differs(a) || (a.job_id < b.job_id ? -1 : 1));
  const cell = (/** @type {any} */ job, /** @type {string} */ whose) => html`<td>
    <span class=${`chip ${FATES[job[whose]]?.tone ?? "none"}`}
      >${FATES[job[whose]]?.symbol ?? "·"} ${inWords(job[whose], job[`${whose}_end_s`], job.deadline_s)}</span
    >
  </td>`;
  const begin = compared.from_sequence ? `after message ${compared.from_sequence}` : "from the start";
  const end = compared.modelled_until_s > compared.until_s ? "at the last deadline" : "with the record";
  const summary =
    `${jobs.filter(differs).length} of ${jobs.length} jobs end otherwise under ${compared.policy}, which decides ${begin}. ` +
    `Both models end ${end}, ${clockTime(compared.modelled_until_s)}, with no later arrivals. ` +
    "Where the first two columns of the table differ, the model errs or the record ends.";
  const columns = html`<th scope="col">Recorded, up to ${clockTime(compared.until_s)}</th>
    <th scope="col">As recorded, modelled</th>
    <th scope="col">${compared.policy}, modelled</th>`;
  return html`
    <p>${summary}</p>
    <details class="behind">
      <summary>Its jobs as a table</summary>
      <div class="scroll" tabindex="0" role="region" aria-label="Jobs under both policies">
        <table>
          <thead>
            <tr><th scope="col">Jobs</th><th scope="col">Deadline</th>${columns}</tr>
          </thead>
          <tbody>
            ${fates.map(
              (fate) =>
                html`<tr>
                  <th scope="row">${fate} in all</th>
                  <td></td>
                  ${WHOSE.map((whose) => html`<td>${compared.counts[whose][fate] ?? 0}</td>`)}
                </tr>`,
            )}
            ${jobs.slice(0, MAX_ROWS).map(
              (job) =>
                html`<tr key=${job.job_id}>
                  <th scope="row">${job.job_id}</th>
                  <td>${job.deadline_s === null ? "–" : clockTime(job.deadline_s)}</td>
                  ${WHOSE.map((whose) => cell(job, whose))}
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
      ${jobs.length > MAX_ROWS && html`<p>The first ${MAX_ROWS} of ${jobs.length}; eflow replay --policy ${compared.policy} --json has all.</p>`}
    </details>
  `;
}
