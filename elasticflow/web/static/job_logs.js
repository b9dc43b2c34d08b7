// The lines of a job's workers, live, by generation and rank.

import { html, useEffect, useRef, useState } from "./vendor/preact-htm.js";
import { jobPath } from "./requests.js";

const MAX_LINES = 5000;
const SHOWN_LINES = 1000;

/** @param {{name: string, source: string}} props */
export function JobLogs({ name, source }) {
  const [lines, setLines] = useState(/** @type {string[]} */ ([]));
  const [problem, setProblem] = useState("");
  const [worker, setWorker] = useState("");
  const [word, setWord] = useState("");
  const [follows, setFollows] = useState(true);
  const box = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    setLines([]);
    const events = new EventSource(`${jobPath(name)}/logs?source=${encodeURIComponent(source)}`);
    events.onmessage = (event) => {
      const { lines: more, skipped } = JSON.parse(event.data);
      const gap = skipped ? [`… ${skipped} lines are not shown`] : [];
      setLines((/** @type {string[]} */ known) => [...known, ...gap, ...more].slice(-MAX_LINES));
    };
    events.onopen = () => setLines([]);
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED)
        setProblem("The logs are in the pool's data folder, which is not known here.");
    };
    return () => events.close();
  }, [name]);
  useEffect(() => {
    if (follows && box.current) box.current.scrollTop = box.current.scrollHeight;
  });
  const workers = [...new Set(lines.map(workerOf).filter(Boolean))].sort();
  const found = lines
    .filter((line) => (!worker || workerOf(line) === worker) && line.includes(word))
    .slice(-SHOWN_LINES);
  return html`
    <section class="panel" aria-labelledby="logs-title">
      <div class="tools">
        <h2 id="logs-title">Logs</h2>
        <label
          >Worker
          <select value=${worker} onChange=${(/** @type {any} */ event) => setWorker(event.target.value)}>
            <option value="">all</option>
            ${workers.map((each) => html`<option value=${each}>${each}</option>`)}
          </select></label
        >
        <label
          >Search
          <input type="search" value=${word} onInput=${(/** @type {any} */ event) => setWord(event.target.value)}
        /></label>
        <label
          ><input
            type="checkbox"
            checked=${follows}
            onChange=${(/** @type {any} */ event) => setFollows(event.target.checked)}
          />
          Follow</label
        >
      </div>
      <pre class="logs" ref=${box} tabindex="0" role="log" aria-live="off" aria-labelledby="logs-title">
${found.map(
          (line) => html`${marked(line, word)}${"\n"}`,
        )}${found.length === 0 ? problem || "No line so far." : ""}</pre>
    </section>
  `;
}

/** "g2-r0 | text" is of generation 2 and rank 0. @param {string} line */
function workerOf(line) {
  return /^g\d+-r\d+(?= \| )/.exec(line)?.[0] ?? "";
}

/** @param {string} line @param {string} word */
function marked(line, word) {
  if (!word) return line;
  return line.split(word).map((part, index) => (index ? html`<mark>${word}</mark>${part}` : part));
}
