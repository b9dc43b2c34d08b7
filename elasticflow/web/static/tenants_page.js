// What each tenant was promised, its limits, and what it has used and that costs.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { read } from "./requests.js";
import { clockTime, dollars, durationInWords, shortNumber } from "./words.js";

/** @param {{store: import("./store.js").PoolStore}} props */
export function TenantsPage({ store }) {
  const [told, setTold] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = async () => {
      try {
        setTold(await read("/api/tenants", { source: store.source }));
      } catch (error) {
        setProblem(String(error));
      }
    };
    const timer = setTimeout(load, told === null ? 0 : 1000);
    return () => clearTimeout(timer);
  }, [store.pool.sequence]);
  const rows = told?.rows;
  const hasQuotas = rows?.some((/** @type {any} */ row) => row.max_gpu_hours_per_day || row.budgets.length);
  return html`
    <h1>Tenants</h1>
    <section class="panel" aria-label="Tenants">
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      ${told?.unpriced && html`<p class="problem" role="status">${told.unpriced}: eflow ui --price names it.</p>`}
      ${rows?.length === 0 && html`<p class="empty">No tenant has submitted a job so far.</p>`}
      <div class="scroll" tabindex="0" role="region" aria-label="Tenants, as a table">
        <table>
          <thead>
            <tr>
              <th scope="col">Tenant</th>
              <th scope="col" class="number">Live jobs</th>
              <th scope="col" class="number">GPUs now</th>
              <th scope="col" class="number">Promised jobs, 24 h</th>
              <th scope="col" class="number">of at most</th>
              <th scope="col" class="number">Promised GPU-hours, 24 h</th>
              <th scope="col" class="number">of at most</th>
              ${hasQuotas && html`<th scope="col">Quota</th>`}
              <th scope="col" class="number">Used GPU-hours</th>
              ${told?.has_costs && html`<th scope="col" class="number">Cost</th>`}
            </tr>
          </thead>
          <tbody>
            ${(rows ?? []).map(
              (/** @type {any} */ row) =>
                html`<tr key=${row.tenant}>
                  <th scope="row">${row.tenant}</th>
                  <td class="number">${row.num_live_jobs}</td>
                  <td class="number">${row.num_gpus}${byType(row.num_gpus_by_type)}</td>
                  <td class="number">${row.num_promised_jobs}</td>
                  <td class="number">${row.max_jobs_per_day ?? "no limit"}</td>
                  <td class="number">${shortNumber(row.promised_gpu_hours)}${byType(row.promised_gpu_hours_by_type)}</td>
                  <td class="number">${row.max_gpu_hours_per_day ?? "no limit"}</td>
                  ${
                    hasQuotas &&
                    html`<td>
                      ${row.max_gpu_hours_per_day && html`<progress max=${row.max_gpu_hours_per_day} value=${row.promised_gpu_hours} aria-label=${`Quota of ${row.tenant}`}></progress>`}
                      ${row.budgets.map(budgetInWords)}
                    </td>`
                  }
                  <td class="number">${shortNumber(row.gpu_hours)}${byType(row.gpu_hours_by_type)}</td>
                  ${told.has_costs && html`<td class="number">${dollars(row.cost)}</td>`}
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
      ${rows?.length > 0 && html`<p>Used since ${clockTime(told.since_s, store.nowS())}, without padding loads, as eflow report counts it.</p>`}
    </section>
  `;
}

/** Below the sum, as "4 V100, 2 P100"; nothing in a pool of one type. @param {Record<string, number>} values */
function byType(values) {
  const words = Object.entries(values).map(([type, value]) => `${shortNumber(value)} ${type}`);
  return words.length > 0 && html`<br /><small>${words.join(", ")}</small>`;
}

/** As "12 of 100 GPU-hours in 7d 00h". @param {any} budget */
function budgetInWords({ gpu_hours, max_gpu_hours, window_s }) {
  return html`<small>
    ${shortNumber(gpu_hours)} of ${shortNumber(max_gpu_hours)} GPU-hours in ${durationInWords(window_s)}<br
  /></small>`;
}
