// One job: its promise, its charts under one cursor, its events by generation, its logs, and commands of an operator.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { Chart } from "./chart.js";
import { JobCommands } from "./job_commands.js";
import { JobLogs } from "./job_logs.js";
import { PromiseChip } from "./job_table.js";
import { PromiseLanes } from "./promise_lanes.js";
import { jobPath, read } from "./requests.js";
import { clockTime, colourOf, durationInWords, expectedOf, finishOf, marginOf, shortNumber } from "./words.js";

const AGAIN_MS = 1000;

/** The detail of a job, read again when the job has changed, at most once a second.
 * @param {import("./store.js").PoolStore} store @param {string} name */
function useDetail(store, name) {
  const [detail, setDetail] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  const readAtMs = useRef(0);
  const row = store.pool.jobs.get(name);
  useEffect(() => {
    let isCurrent = true;
    const load = async () => {
      readAtMs.current = Date.now();
      try {
        const found = await read(jobPath(name), { source: store.source });
        if (isCurrent) [setDetail(found), setProblem("")];
      } catch (error) {
        if (isCurrent) setProblem(String(error));
      }
    };
    const timer = setTimeout(load, Math.max(0, readAtMs.current + AGAIN_MS - Date.now()));
    return () => {
      isCurrent = false;
      clearTimeout(timer);
    };
  }, [name, row]);
  return { detail, problem };
}

/** @param {{store: import("./store.js").PoolStore, session: any, name: string, nowS: number}} props */
export function JobPage({ store, session, name, nowS }) {
  const { detail, problem } = useDetail(store, name);
  if (detail === null) {
    return html`<h1>${name}</h1>
      <p class=${problem ? "problem" : "empty"} role="status">${problem || "Reading its history …"}</p>`;
  }
  const row = store.pool.jobs.get(name) ?? detail.row;
  return html`
    <h1>${name} <${PromiseChip} job=${row} nowS=${nowS} /></h1>
    <${Facts} row=${row} detail=${detail} nowS=${nowS} />
    ${row.live && session.operator && html`<${JobCommands} row=${row} nowS=${nowS} />`}
    <${Offers} row=${row} detail=${detail} canTake=${session.operator && session.tenant === row.tenant} />
    <${PromiseLanes} jobs=${new Map([[name, row]])} quotes=${[]} nowS=${nowS} isOne=${true} />
    <${Charts} detail=${detail} row=${row} />
    <div class="columns">
      <${History} entries=${detail.history} />
      <div>
        ${session.sources[store.source].is_live && html`<${JobLogs} name=${name} source=${store.source} />`}
        ${
          detail.traceback &&
          html`<section class="panel">
            <h2>Traceback</h2>
            <pre class="logs" tabindex="0">${detail.traceback}</pre>
          </section>`
        }
        <${Settings} detail=${detail} />
      </div>
    </div>
  `;
}

/** @param {{row: any, detail: any, nowS: number}} props */
function Facts({ row, detail, nowS }) {
  const [finishS, marginS] = [finishOf(row, nowS), marginOf(row, nowS)];
  const { iterations_per_s: rate, silent_since_s: silentSinceS } = expectedOf(row, nowS);
  const facts = [
    ["State", row.activity],
    ["GPUs", row.num_gpus ? row.gpus_in_words : "none"],
    ["Iteration", row.max_iterations ? `${row.iteration} of ${row.max_iterations}` : "–"],
    ["Iterations/s", shortNumber(rate)],
    [row.live ? "Expected finish" : "Ended", finishS === null ? "–" : clockTime(finishS, nowS)],
    ["Deadline", row.deadline_s === null ? "none" : clockTime(row.deadline_s, nowS)],
    ["Margin", marginS === null ? "–" : durationInWords(marginS)],
    ["Class, tenant", `${row.job_class.replace("_", "-") || "–"}, ${row.tenant}`],
  ];
  return html`
    <section class="panel" aria-label="The job in numbers">
      <dl class="facts">
        ${facts.map(
          ([name, value]) =>
            html`<div>
              <dt>${name}</dt>
              <dd>${value}</dd>
            </div>`,
        )}
      </dl>
      <p><progress max="1" value=${row.progress} aria-label="Progress"></progress></p>
      ${detail.promise && html`<p>Promised: ${detail.promise}.</p>`}
      ${silentSinceS !== null && html`<p class="problem">No progress reported for ${durationInWords(nowS - silentSinceS)}.</p>`}
      ${row.explanation && html`<p class="problem">${row.explanation}</p>`}
    </section>
  `;
}

/** @param {{row: any, detail: any, canTake: boolean}} props */
function Offers({ row, detail, canTake }) {
  if (detail.offers.length === 0) return null;
  return html`
    <section class="panel" aria-labelledby="offers-title">
      <h2 id="offers-title">What admission offered instead</h2>
      <ul>
        ${detail.offers.map(
          (/** @type {any} */ offer, /** @type {number} */ index) =>
            html` <li>${offer.text} ${canTake && html`<${JobCommands} row=${row} offer=${index} />`}</li>`,
        )}
      </ul>
    </section>
  `;
}

const TO_BE_DRAWN = "Metrics, throughput, GPUs and margin are drawn here from its first report of progress on.";

/** @param {{detail: any, row: any}} props */
function Charts({ detail, row }) {
  const charts = useMemo(() => {
    const { reports } = detail;
    const of = (/** @type {(report: any) => number | null | undefined} */ value) =>
      reports.map((/** @type {any} */ report) => [report.at_s, value(report) ?? null]);
    const metrics = [...new Set(reports.flatMap((/** @type {any} */ report) => Object.keys(report.metrics)))].slice(
      0,
      3,
    );
    return [
      ...metrics.map((metric) => ({
        title: metric,
        unit: "",
        points: of((report) => report.metrics[metric]),
        colour: "--job-5",
      })),
      {
        title: "Throughput",
        unit: "iterations/s",
        points: of((report) => report.iterations_per_s),
        colour: "--job-1",
        zeroLine: true,
      },
      {
        title: "GPUs",
        unit: "",
        points: of((report) => report.num_gpus),
        colour: colourOf(row.job_id),
        steps: true,
        zeroLine: true,
      },
      { title: "Margin", unit: "s", points: of((report) => report.margin_s), colour: "--job-3", zeroLine: true },
    ].filter((chart) => chart.points.some((/** @type {any[]} */ point) => point[1] !== null));
  }, [detail]);
  if (charts.length === 0) {
    return html`
      <section class="panel" aria-labelledby="charts-title">
        <h2 id="charts-title">Over time</h2>
        <p class="empty">${row.live ? TO_BE_DRAWN : "It ended without a report of progress."}</p>
      </section>
    `;
  }
  return html`
    <section class="panel" aria-labelledby="charts-title">
      <h2 id="charts-title">Over time</h2>
      <div class="charts">
        ${charts.map((chart) => html`<${Chart} key=${chart.title} ...${chart} cursor=${row.job_id} />`)}
      </div>
    </section>
  `;
}

/** Each placement begins a group. @param {any[]} entries */
function grouped(entries) {
  const groups = [{ title: "Decision", entries: /** @type {any[]} */ ([]) }];
  for (const entry of entries) {
    const generation = entry.type === "PlacementDecided" && /^generation \d+/.exec(entry.text);
    if (generation) groups.push({ title: generation[0], entries: [] });
    groups[groups.length - 1].entries.push(entry);
  }
  return groups.filter((group) => group.entries.length);
}

/** @param {{entries: any[]}} props */
function History({ entries }) {
  const [filter, setFilter] = useState("");
  const found = entries.filter((entry) => entry.text.toLowerCase().includes(filter.toLowerCase()));
  return html`
    <section class="panel" aria-labelledby="history-title">
      <div class="tools">
        <h2 id="history-title">Events, as eflow explain tells them</h2>
        <label
          >Search
          <input type="search" value=${filter} onInput=${(/** @type {any} */ event) => setFilter(event.target.value)}
        /></label>
      </div>
      <div class="scroll tall" tabindex="0" role="region" aria-label="Events of the job">
        ${grouped(found).map(
          (group) =>
            html` <div class="group">
              <h3>${group.title}</h3>
              <ol class="history">
                ${group.entries.map(
                  (entry) => html` <li><time>${clockTime(entry.at_s)}</time><span>${entry.text}</span></li>`,
                )}
              </ol>
            </div>`,
        )}
      </div>
      ${found.length === 0 && html`<p class="empty">No event.</p>`}
    </section>
  `;
}

/** @param {{detail: any}} props */
function Settings({ detail }) {
  return html`
    <section class="panel" aria-labelledby="settings-title">
      <h2 id="settings-title">Specification</h2>
      <p>${detail.spec}</p>
      <dl class="facts">
        ${Object.entries(detail.hyperparameters).map(
          ([name, value]) =>
            html`<div>
              <dt>${name}</dt>
              <dd>${String(value)}</dd>
            </div>`,
        )}
      </dl>
    </section>
  `;
}
