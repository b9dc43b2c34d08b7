// Racks and nodes, with a square for each GPU.

import { html } from "./vendor/preact-htm.js";
import { JobLink } from "./job_table.js";
import { clockTime, colourOf, counted, durationInWords, gibInWords } from "./words.js";

const LOST_LATELY_S = 3600;

/** @param {{store: import("./store.js").PoolStore, nowS: number}} props */
export function NodesPage({ store, nowS }) {
  const nodes = store.pool.nodes.filter((node) => node.alive || (!node.left && nowS - node.since_s < LOST_LATELY_S));
  const racks = [...new Set(nodes.map((node) => node.rack))].sort();
  return html`
    <h1>Nodes</h1>
    ${nodes.length === 0 && html`<p class="empty">No node so far.</p>`}
    ${racks.map(
      (rack) =>
        html` <section class="panel" aria-label=${rack ? `Rack ${rack}` : "Nodes"}>
          ${(rack || racks.length > 1) && html`<h2>${rack ? `Rack ${rack}` : "No named rack"}</h2>`}
          <div class="nodes">
            ${nodes.filter((node) => node.rack === rack).map((node) => html`<${Node} key=${node.node_id} node=${node} nowS=${nowS} />`)}
          </div>
        </section>`,
    )}
    <ul class="legend" aria-label="Legend">
      <li>a coloured square: the job on that GPU</li>
      <li>dashed: free</li>
      <li>hatched: free, and padding loads may use it</li>
      <li>amber edge: slow</li>
      <li>red edge with ✕: lost</li>
    </ul>
  `;
}

const FEW_NODES = 6;

/** The first nodes that are alive, below the lanes. @param {{nodes: any[], nowS: number}} props */
export function NodesNow({ nodes, nowS }) {
  const alive = nodes.filter((node) => node.alive);
  if (alive.length === 0) return null;
  return html`
    <section class="panel" aria-labelledby="nodes-title">
      <h2 id="nodes-title">Nodes</h2>
      <div class="nodes">
        ${alive.slice(0, FEW_NODES).map((node) => html`<${Node} key=${node.node_id} node=${node} nowS=${nowS} />`)}
      </div>
      ${alive.length > FEW_NODES && html`<p><a href="#/nodes">All ${alive.length} nodes</a></p>`}
    </section>
  `;
}

/** @param {{node: any, nowS: number}} props */
function Node({ node, nowS }) {
  const slow = Object.entries(node.slow_until_s)
    .filter(([, untilS]) => Number(untilS) > nowS)
    .map(([index]) => Number(index));
  const failing = slow.filter((index) => node.failing?.[index]);
  const free = node.jobs.filter((/** @type {string} */ job) => job === "").length;
  const memory = node.gpu_memory_bytes ? ` · ${gibInWords(node.gpu_memory_bytes)} each` : "";
  const state = node.alive
    ? `${free} of ${counted(node.num_gpus, "GPU")} free`
    : `lost ${durationInWords(nowS - node.since_s)} ago`;
  let numPadding = node.num_padding_gpus;
  const squares = node.jobs.map((/** @type {string} */ job, /** @type {number} */ index) => {
    const isPadding = !job && node.alive && numPadding-- > 0;
    return html`<li key=${index}>
      <${Gpu} node=${node} job=${job} index=${index} isSlow=${slow.includes(index)} isPadding=${isPadding} />
    </li>`;
  });
  const jobs = /** @type {string[]} */ ([...new Set(node.jobs)]).filter(Boolean).sort();
  const perSocket = Math.ceil(node.num_gpus / node.num_sockets);
  const sockets = Array.from({ length: node.num_sockets }, (_, index) =>
    squares.slice(index * perSocket, (index + 1) * perSocket),
  );
  return html`
    <article class="node" aria-label=${`Node ${node.node_id}`}>
      <h2>${node.node_id} ${!node.alive && html`<span class="chip bad">✕ lost</span>`}</h2>
      <p>${node.device}${node.gpu_type && ` · ${node.gpu_type}`}${memory} · ${state}</p>
      ${
        node.alive &&
        node.until_s > 0 &&
        html`<p>
          until ${clockTime(node.until_s, nowS)} (in ${durationInWords(Math.max(node.until_s - nowS, 0))})
          ${node.draining && html`<span class="chip risk">▲ draining: its jobs move</span>`}
        </p>`
      }
      ${node.alive && node.awaited && html`<p><span class="chip risk">▲ awaited: it takes no job before it joins again</span></p>`}
      ${failing.map((index) => html`<p><span class="chip risk">▲ GPU ${index} ${node.failing[index]}</span></p>`)}
      ${slow.length > 0 && html`<p><span class="chip risk">▲ slow: GPU ${slow.join(", ")}</span></p>`}
      ${node.slower_than_type > 0 && html`<p><span class="chip risk">▲ ${Math.round(100 * node.slower_than_type)} % slower than others of its type</span></p>`}
      ${sockets.map(
        (socket, index) =>
          html` <ul class="gpus" aria-label=${node.num_sockets > 1 ? `Socket ${index}` : "GPUs"}>
            ${socket}
          </ul>`,
      )}
      ${
        node.alive &&
        jobs.map((job) => html`<p><i class=${`swatch ${colourOf(job).slice(2)}`}></i><${JobLink} job=${job} /></p>`)
      }
    </article>
  `;
}

/** @param {{node: any, job: string, index: number, isSlow: boolean, isPadding: boolean}} props */
function Gpu({ node, job, index, isSlow, isPadding }) {
  const what = !node.alive ? "lost" : job || (isPadding ? "free, padding loads may use it" : "free");
  const label = `GPU ${index}: ${what}${isSlow ? ", slow" : ""}`;
  const marks = `gpu ${isSlow ? "slow" : ""}`;
  if (job && node.alive) {
    const colour = colourOf(job).slice(2);
    return html`<a class=${`${marks} ${colour}`} href=${`#/job/${encodeURIComponent(job)}`} title=${label}>
      <span aria-hidden="true">${index}</span><span class="hidden">${label}</span>
    </a>`;
  }
  const look = node.alive ? `free ${isPadding ? "padding" : ""}` : "lost";
  return html`<span class=${`${marks} ${look}`} role="img" aria-label=${label} title=${label}
    >${node.alive ? index : "✕"}</span
  >`;
}
