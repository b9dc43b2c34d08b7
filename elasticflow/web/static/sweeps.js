// Which configuration of each sweep won: the swept values and the metrics of its jobs, the best first.

import { html } from "./vendor/preact-htm.js";
import { JobLink, PromiseChip } from "./job_table.js";
import { shortNumber } from "./words.js";

const MAX_ROWS = 50;

/** The sweeps of the pool, the newest first: name, how their jobs are ranked, and the jobs, the best first.
 * @param {Iterable<any>} jobs */
export function rankedSweeps(jobs) {
  /** @type {Map<string, any[]>} */ const members = new Map();
  for (const job of jobs) {
    if (job.sweep) members.set(job.sweep, [job, ...(members.get(job.sweep) ?? [])]);
  }
  return [...members].reverse().map(([name, found]) => {
    const ranking = found.find((job) => job.ranking)?.ranking ?? null;
    const value = (/** @type {any} */ job) => job.metrics[ranking?.metric] ?? null;
    const sign = ranking?.lowest_first ? 1 : -1;
    const sorted = [...found].sort((a, b) =>
      value(a) === null || value(b) === null
        ? Number(value(a) === null) - Number(value(b) === null)
        : sign * (value(a) - value(b)),
    );
    const names = (/** @type {"swept" | "metrics"} */ of) => [...new Set(found.flatMap((job) => Object.keys(job[of])))];
    const metrics = [...new Set([...(ranking ? [ranking.metric] : []), ...names("metrics").sort()])];
    return { name, ranking, swept: names("swept"), metrics, jobs: sorted };
  });
}

/** @param {{jobs: Map<string, any>, nowS: number}} props */
export function Sweeps({ jobs, nowS }) {
  return rankedSweeps(jobs.values()).map(
    (sweep) => html`<${Sweep} key=${sweep.name} sweep=${sweep} nowS=${nowS} />`,
  );
}

/** @param {{sweep: ReturnType<typeof rankedSweeps>[0], nowS: number}} props */
function Sweep({ sweep, nowS }) {
  const { name, ranking, swept, metrics, jobs } = sweep;
  const how = ranking
    ? `sorted by ${ranking.metric}, the ${ranking.lowest_first ? "lowest" : "highest"} first`
    : "no job has reported a metric";
  return html`
    <section class="panel" aria-label=${`Sweep ${name}`}>
      <h2>Sweep ${name}<small> ${how}</small></h2>
      <div class="scroll" tabindex="0" role="region" aria-label=${`Sweep ${name} as a table`}>
        <table>
          <thead>
            <tr>
              ${swept.map((each) => html`<th scope="col">${each}</th>`)}
              ${metrics.map((each) => html`<th scope="col" class="number">${each}</th>`)}
              <th scope="col">State</th>
              <th scope="col">Promise</th>
              <th scope="col" class="number">Iteration</th>
              <th scope="col">Job</th>
            </tr>
          </thead>
          <tbody>
            ${jobs.slice(0, MAX_ROWS).map(
              (job) =>
                html`<tr key=${job.job_id}>
                  ${swept.map((each) => html`<td>${String(job.swept[each] ?? "–")}</td>`)}
                  ${metrics.map((each) => html`<td class="number">${shortNumber(job.metrics[each])}</td>`)}
                  <td>${job.activity}</td>
                  <td><${PromiseChip} job=${job} nowS=${nowS} /></td>
                  <td class="number">${job.iteration}/${job.max_iterations}</td>
                  <td><${JobLink} job=${job.job_id} /></td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
      ${jobs.length > MAX_ROWS && html`<p>The first ${MAX_ROWS} of ${jobs.length}; eflow jobs --sweep ${name} has all.</p>`}
    </section>
  `;
}
