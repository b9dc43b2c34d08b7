// The pool: its numbers, promise lanes, and its decisions in words.

import { html, useState } from "./vendor/preact-htm.js";
import { JobLink } from "./job_table.js";
import { NodesNow } from "./nodes_page.js";
import { PromiseLanes } from "./promise_lanes.js";
import { Sweeps } from "./sweeps.js";
import { clockTime, colourOf, durationInWords, marginOf, PROMISES, promiseOf } from "./words.js";

/** @param {{store: import("./store.js").PoolStore, nowS: number}} props */
export function PoolPage({ store, nowS }) {
  return html`<h1 class="hidden">Pool</h1>
    <${PoolView} pool=${store.pool} nowS=${nowS} nodes=${store.pool.nodes} />`;
}

/** The pool at one time; the replay shows it, too. nodes: of this time; a replay does not know them.
 * @param {{pool: import("./store.js").Pool, nowS: number, nodes?: any[], laidOver?: import("./lanes.js").LaidOver | null}} props */
export function PoolView({ pool, nowS, nodes = [], laidOver }) {
  return html`
    ${
      pool.numJobsLeftOut > 0 &&
      html`<p class="problem" role="status">
        ${pool.numJobsLeftOut} jobs are neither shown nor counted here; eflow jobs --all lists them.
      </p>`
    }
    <${Numbers} pool=${pool} nowS=${nowS} />
    <div class="columns">
      <div>
        <${PromiseLanes} jobs=${pool.jobs} quotes=${pool.quotes} nowS=${nowS} laidOver=${laidOver} />
        <${Sweeps} jobs=${pool.jobs} nowS=${nowS} />
        <${NodesNow} nodes=${nodes} nowS=${nowS} />
      </div>
      <${Feed} feed=${pool.feed} jobs=${pool.jobs} />
    </div>
    ${pool.loads.length > 0 && html`<${Loads} loads=${pool.loads} />`}
  `;
}

/** @param {{pool: import("./store.js").Pool, nowS: number}} props */
function Numbers({ pool, nowS }) {
  /** @type {Record<string, number>} */ const count = Object.fromEntries(Object.keys(PROMISES).map((promise) => [promise, 0]));
  /** @type {any} */ let least = null;
  for (const job of pool.jobs.values()) {
    count[promiseOf(job, nowS)] += 1;
    if (promiseOf(job, nowS) === "none" && job.activity === "failed") count.failed += 1;
    const marginS = marginOf(job, nowS);
    if (!job.live || promiseOf(job, nowS) === "none" || marginS === null) continue;
    if (least === null || marginS < least.marginS) least = { job: job.job_id, marginS };
  }
  const types = Object.entries(pool.numGpusByType);
  const byType = types.length > 1 ? types.map(([type, gpus]) => `${gpus} ${type || "unnamed"}`).join(", ") : "";
  return html`
    <dl class="numbers">
      <div class="wide">
        <dt>GPUs used</dt>
        <dd>
          ${pool.numGpusUsed}<small> of ${pool.numGpus}</small>
          <progress max=${pool.numGpus || 1} value=${pool.numGpusUsed} aria-label="GPUs used"></progress>
          ${byType && html`<small>${byType}</small>`}
        </dd>
      </div>
      <div>
        <dt>● Promises live</dt>
        <dd>${count.promised + count["at risk"]}</dd>
      </div>
      <div class=${count["at risk"] ? "risk" : ""}>
        <dt>▲ At risk</dt>
        <dd>${count["at risk"]}</dd>
      </div>
      <div class=${count.broken ? "bad" : ""}>
        <dt>✕ Broken</dt>
        <dd>${count.broken}</dd>
      </div>
      <div class=${count.failed ? "bad" : ""}>
        <dt>✕ Failed</dt>
        <dd>${count.failed}</dd>
      </div>
      <div>
        <dt>✓ Kept</dt>
        <dd>${count.kept}</dd>
      </div>
      <div class="wide">
        <dt>Least margin</dt>
        <dd>
          ${least ? durationInWords(least.marginS) : "–"}${least && html`<small> <${JobLink} job=${least.job} /></small>`}
        </dd>
      </div>
    </dl>
  `;
}

const FEED_ROWS = 60;

/** @param {{feed: any[], jobs: Map<string, any>}} props */
function Feed({ feed, jobs }) {
  const [filter, setFilter] = useState("");
  const found = feed.filter((row) => `${row.name} ${row.text}`.toLowerCase().includes(filter.toLowerCase()));
  return html`
    <section class="panel feed" aria-labelledby="feed-title">
      <div class="tools">
        <h2 id="feed-title">Decisions</h2>
        <label
          >Filter
          <input
            type="search"
            value=${filter}
            placeholder="word"
            onInput=${(/** @type {any} */ event) => setFilter(event.target.value)}
        /></label>
      </div>
      <ol tabindex="0" role="list" aria-label="Decisions, the newest first">
        ${found
          .slice(-FEED_ROWS)
          .reverse()
          .map(
            (row) =>
              html` <li key=${`${row.sequence}/${row.name}/${row.type}`}>
                <time>${clockTime(row.at_s)}</time>
                <span
                  >${row.name && html`<i class=${`swatch ${colourOf(row.name).slice(2)}`}></i>${jobs.has(row.name) ? html`<${JobLink} job=${row.name} />` : html`<b>${row.name}</b>`} `}${row.text}</span
                >
              </li>`,
          )}
      </ol>
      ${found.length === 0 && html`<p class="empty">No decision${filter && " with this word"} so far.</p>`}
    </section>
  `;
}

/** @param {{loads: any[]}} props */
function Loads({ loads }) {
  return html`
    <section class="panel" aria-labelledby="loads-title">
      <h2 id="loads-title">Padding loads</h2>
      <div class="scroll" tabindex="0" role="region" aria-label="Padding loads as a table">
        <table>
          <thead>
            <tr>
              <th scope="col">Load</th>
              <th scope="col">State</th>
              <th scope="col">Tasks with a result</th>
              <th scope="col">Progress</th>
            </tr>
          </thead>
          <tbody>
            ${loads.map(
              (load) =>
                html`<tr key=${load.load_id}>
                  <th scope="row">${load.load_id}</th>
                  <td>${load.phase}</td>
                  <td>${load.tasks_in_words}</td>
                  <td>
                    <progress max="1" value=${load.progress} aria-label=${`Progress of ${load.load_id}`}></progress>
                  </td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
    </section>
  `;
}
