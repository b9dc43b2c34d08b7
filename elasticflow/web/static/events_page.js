// The ledger, message by message.

import { html, useEffect, useState } from "./vendor/preact-htm.js";
import { read } from "./requests.js";
import { clockTime } from "./words.js";

/** @param {{store: import("./store.js").PoolStore}} props */
export function EventsPage({ store }) {
  const [job, setJob] = useState("");
  const [type, setType] = useState("");
  const [before, setBefore] = useState(/** @type {number | null} */ (null));
  const [page, setPage] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const newest = before === null ? store.pool.sequence : 0;
  useEffect(() => {
    const abort = new AbortController();
    const load = async () => {
      try {
        const query = { source: store.source, job, type, ...(before === null ? {} : { before }) };
        setPage(await read("/api/events", query, abort.signal));
        setProblem("");
      } catch (error) {
        if (!abort.signal.aborted) setProblem(String(error));
      }
    };
    const timer = setTimeout(load, 150);
    return () => {
      clearTimeout(timer);
      abort.abort();
    };
  }, [job, type, before, newest]);
  const rows = page ? [...page.rows].reverse() : [];
  return html`
    <h1>Events</h1>
    <section class="panel" aria-label="The ledger">
      <div class="tools">
        <label
          >Job
          <input
            type="search"
            value=${job}
            onInput=${(/** @type {any} */ event) => [setJob(event.target.value), setBefore(null)]}
        /></label>
        <label
          >Type
          <input
            type="search"
            value=${type}
            placeholder="JobAdmitted"
            onInput=${(/** @type {any} */ event) => [setType(event.target.value), setBefore(null)]}
        /></label>
        <span class="buttons">
          <button disabled=${before === null} onClick=${() => setBefore(null)}>Newest</button>
          <button disabled=${!page?.before} onClick=${() => setBefore(page.before)}>Earlier</button>
        </span>
      </div>
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
      <div class="scroll tall" tabindex="0" role="region" aria-label="Messages, the newest first">
        <table>
          <thead>
            <tr>
              <th scope="col" class="number">Sequence</th>
              <th scope="col">Time</th>
              <th scope="col">From</th>
              <th scope="col">Type</th>
              <th scope="col">Fields</th>
            </tr>
          </thead>
          <tbody>
            ${rows.map(
              (row, index) =>
                html`<tr key=${`${row.sequence}/${index}`}>
                  <th scope="row" class="number">${row.sequence}</th>
                  <td>${clockTime(row.at_s)}</td>
                  <td>${row.from}</td>
                  <td>${row.type}</td>
                  <td class="text">
                    <details>
                      <summary>${short(row.fields)}</summary>
                      <pre>${JSON.stringify(row.fields, null, 2)}</pre>
                    </details>
                  </td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
      ${page && rows.length === 0 && html`<p class="empty">No message ${page.before ? "among the newest; earlier ones may have it" : "fits"}.</p>`}
    </section>
  `;
}

const SHORT = 90;

/** @param {Record<string, unknown> | undefined} fields */
function short(fields) {
  const text = Object.entries(fields ?? {})
    .filter(([name]) => name !== "at_s")
    .map(([name, value]) => `${name}=${typeof value === "object" ? JSON.stringify(value) : value}`)
    .join("  ");
  return text.length > SHORT ? `${text.slice(0, SHORT)} …` : text || "–";
}
