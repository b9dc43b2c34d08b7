// What each tenant was promised, and its limits.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { read } from "./requests.js";
import { shortNumber } from "./words.js";

/** @param {{store: import("./store.js").PoolStore}} props */
export function TenantsPage({ store }) {
  const [rows, setRows] = useState(/** @type {any[] | null} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    const load = async () => {
      try {
        setRows(await read("/api/tenants", { source: store.source }));
      } catch (error) {
        setProblem(String(error));
      }
    };
    const timer = setTimeout(load, rows === null ? 0 : 1000);
    return () => clearTimeout(timer);
  }, [store.pool.sequence]);
  return html`
    <h1>Tenants</h1>
    <section class="panel" aria-label="Tenants">
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
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
              <th scope="col">Used</th>
            </tr>
          </thead>
          <tbody>
            ${(rows ?? []).map(
              (row) =>
                html`<tr key=${row.tenant}>
                  <th scope="row">${row.tenant}</th>
                  <td class="number">${row.num_live_jobs}</td>
                  <td class="number">${row.num_gpus}${byType(row.num_gpus_by_type)}</td>
                  <td class="number">${row.num_promised_jobs}</td>
                  <td class="number">${row.max_jobs_per_day ?? "no limit"}</td>
                  <td class="number">${shortNumber(row.promised_gpu_hours)}${byType(row.promised_gpu_hours_by_type)}</td>
                  <td class="number">${row.max_gpu_hours_per_day ?? "no limit"}</td>
                  <td>
                    ${row.max_gpu_hours_per_day && html`<progress max=${row.max_gpu_hours_per_day} value=${row.promised_gpu_hours} aria-label=${`Quota of ${row.tenant}`}></progress>`}
                  </td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}

/** Below the sum, as "4 V100, 2 P100"; nothing in a pool of one type. @param {Record<string, number>} values */
function byType(values) {
  const words = Object.entries(values).map(([type, value]) => `${shortNumber(value)} ${type}`);
  return words.length > 0 && html`<br /><small>${words.join(", ")}</small>`;
}
