// The table behind the lanes, and the chip of a promise.

import { html, useState } from "./vendor/preact-htm.js";
import { clockTime, durationInWords, finishOf, marginOf, PROMISES, promiseOf, shortened } from "./words.js";

const MAX_ROWS = 200;

/** @param {{job: any, nowS: number}} props */
export function PromiseChip({ job, nowS }) {
  const { symbol, word, tone } = PROMISES[promiseOf(job, nowS)];
  return html`<span class=${`chip ${tone}`}><span aria-hidden="true">${symbol} </span>${word}</span>`;
}

const LINK_CHARACTERS = 30;

/** @param {{job: string}} props */
export function JobLink({ job }) {
  const shown = shortened(job, (text) => text.length <= LINK_CHARACTERS);
  return html`<a href=${`#/job/${encodeURIComponent(job)}`} title=${shown === job ? null : job}>${shown}</a>`;
}

/** @param {{jobs: any[], nowS: number}} props */
export function JobTable({ jobs, nowS }) {
  const [open, setOpen] = useState(false);
  const hasSweeps = jobs.some((job) => job.swept_in_words);
  const time = (/** @type {number | null} */ atS) => (atS === null ? "–" : clockTime(atS, nowS));
  return html`
    <details class="behind" open=${open} onToggle=${(/** @type {any} */ event) => setOpen(event.target.open)}>
      <summary>As a table</summary>
      ${
        open &&
        html`<div class="scroll" tabindex="0" role="region" aria-label="Jobs as a table">
            <table>
              <thead>
                <tr>
                  <th scope="col">Job</th>
                  <th scope="col">Promise</th>
                  <th scope="col">State</th>
                  ${hasSweeps && html`<th scope="col">Swept</th>`}
                  <th scope="col" class="number">GPUs</th>
                  <th scope="col" class="number">Iteration</th>
                  <th scope="col" class="number">Finish</th>
                  <th scope="col" class="number">Deadline</th>
                  <th scope="col" class="number">Margin</th>
                </tr>
              </thead>
              <tbody>
                ${jobs.slice(0, MAX_ROWS).map((job) => {
                  const marginS = marginOf(job, nowS);
                  return html`<tr key=${job.job_id}>
                    <th scope="row">${job.is_quote ? job.job_id : html`<${JobLink} job=${job.job_id} />`}</th>
                    <td><${PromiseChip} job=${job} nowS=${nowS} /></td>
                    <td>${job.activity}</td>
                    ${hasSweeps && html`<td>${job.swept_in_words || "–"}</td>`}
                    <td class="number">${job.num_gpus || "–"}</td>
                    <td class="number">${job.max_iterations ? `${job.iteration}/${job.max_iterations}` : "–"}</td>
                    <td class="number">${time(finishOf(job, nowS))}</td>
                    <td class="number">${time(job.deadline_s)}</td>
                    <td class="number">${marginS === null ? "–" : durationInWords(marginS)}</td>
                  </tr>`;
                })}
              </tbody>
            </table>
          </div>
          ${jobs.length > MAX_ROWS && html`<p>The first ${MAX_ROWS} of ${jobs.length}; the filter finds others.</p>`}`
      }
    </details>
  `;
}
