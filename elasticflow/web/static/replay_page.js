// The pool at any time of a ledger: a scrubber, playback, and two states side by side.

import { html, useEffect, useMemo, useRef, useState } from "./vendor/preact-htm.js";
import { useNewest } from "./newest.js";
import { laidOver, OtherPolicy } from "./other_policy.js";
import { PoolView } from "./pool_page.js";
import { read, write } from "./requests.js";
import { emptyPool, movedTo } from "./store.js";
import { clockTime, durationInWords, marginOf } from "./words.js";

const SPEEDS = [1, 10, 100, 1000];
const FRAME_MS = 100;
const SLIDER_STEPS = 1000;
const EMPTY = emptyPool();

/** @param {{session: any}} props */
export function ReplayPage({ session }) {
  const [source, setSource] = useState("live");
  const [numOpened, setNumOpened] = useState(0);
  const [ledger, setLedger] = useState(/** @type {any} */ (null));
  const [problem, setProblem] = useState("");
  useEffect(() => {
    let isWanted = true;
    setLedger(null);
    read("/api/session").then(
      (now) => isWanted && setLedger(now.sources[source]),
      (error) => isWanted && setProblem(String(error)),
    );
    return () => {
      isWanted = false;
    };
  }, [source, numOpened]);
  const open = async (/** @type {any} */ event) => {
    const [file] = event.target.files;
    if (!file) return;
    try {
      await write("/api/export", file);
      setProblem("");
      setSource("export");
      setNumOpened(numOpened + 1);
    } catch (error) {
      setProblem(String(error));
    }
    event.target.value = ""; // the same file can be chosen again
  };
  return html`
    <h1>Replay</h1>
    <div class="tools">
      <label
        >Ledger
        <select
          value=${source}
          onChange=${(/** @type {any} */ event) => setSource(event.target.value)}
        >
          <option value="live">${session.sources.live.title}</option>
          ${(source === "export" || session.sources.export) && html`<option value="export">an exported ledger</option>`}
        </select></label
      >
      <label>Open an export <input type="file" onChange=${open} /></label>
    </div>
    ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    ${ledger?.incomplete && html`<p class="problem" role="alert">${ledger.incomplete}</p>`}
    ${ledger && html`<${Scrubber} key=${`${source}/${numOpened}`} source=${source} ledger=${ledger} policies=${session.policies} />`}
  `;
}

/** @param {{source: string, ledger: any, policies: string[]}} props */
function Scrubber({ source, ledger, policies }) {
  const { first_at_s: firstS, last_at_s: lastS, last_sequence: lastSequence } = ledger;
  const [place, setPlace] = useState(/** @type {any} */ ({ at_ms: Math.ceil(lastS * 1000) }));
  const [speed, setSpeed] = useState(10);
  const [plays, setPlays] = useState(false);
  const [compared, setCompared] = useState(/** @type {any} */ (null));
  const [pinned, setPinned] = useState(/** @type {any} */ (null));
  const shown = useRef(EMPTY);
  const past = async (/** @type {any} */ asked) => {
    const known = { known: shown.current.sequence, known_at_ms: Math.round(shown.current.nowS * 1000) };
    shown.current = movedTo(shown.current, await read("/api/state", { source, ...asked, ...known }));
    return shown.current;
  };
  const { answer, problem } = useNewest(past, place);
  const pool = answer ?? EMPTY;
  const view = useMemo(
    () => html`<${PoolView} pool=${pool} nowS=${pool.nowS} laidOver=${compared?.laid} />`,
    [pool, compared], // not drawn again while an answer is awaited
  );
  const atS = "at_ms" in place ? place.at_ms / 1000 : pool.nowS;
  const setTime = (/** @type {number} */ seconds) =>
    setPlace({ at_ms: Math.ceil(Math.min(lastS, Math.max(firstS, seconds)) * 1000) });
  const step = (/** @type {number} */ by) => {
    setPlays(false);
    setPlace({ sequence: Math.min(lastSequence, Math.max(1, pool.sequence + by)) });
  };
  useEffect(() => {
    if (!plays) return undefined;
    if (atS >= lastS) return setPlays(false);
    const timer = setTimeout(() => setTime(atS + (speed * FRAME_MS) / 1000), FRAME_MS);
    return () => clearTimeout(timer);
  });
  const where = `, ${durationInWords(atS - firstS)} after the first message; message ${pool.sequence} of ${lastSequence}`;
  const overlay = compared ? { policy: compared.policy, from: compared.from_sequence } : {};
  const play = () => {
    if (!plays && atS >= lastS) setTime(firstS);
    setPlays(!plays);
  };
  return html`
    <section class="panel" aria-label="Time">
      <div class="tools">
        <span class="buttons">
          <button class="primary" onClick=${play}>${plays ? "Pause" : "Play"}</button>
          <button onClick=${() => step(-1)}>Previous message</button>
          <button onClick=${() => step(1)}>Next message</button>
        </span>
        <label
          >Speed
          <select value=${speed} onChange=${(/** @type {any} */ event) => setSpeed(Number(event.target.value))}>
            ${SPEEDS.map((each) => html`<option value=${each}>${each} ×</option>`)}
          </select></label
        >
        <span><b>${clockTime(atS)}</b>${where}</span>
        <button onClick=${() => setPinned({ pool, atS })}>Compare from here</button>
        <a class="button" download href=${`/api/saved?${new URLSearchParams({ source, ...place, ...overlay })}`}>Save as HTML</a>
      </div>
      <input
        type="range"
        aria-label="Time of the replay"
        min="0"
        max=${SLIDER_STEPS}
        value=${((atS - firstS) / (lastS - firstS || 1)) * SLIDER_STEPS}
        aria-valuetext=${clockTime(atS)}
        onInput=${(/** @type {any} */ event) => [setPlays(false), setTime(firstS + (Number(event.target.value) / SLIDER_STEPS) * (lastS - firstS))]}
      />
      ${problem && html`<p class="problem" role="alert">${problem}</p>`}
    </section>
    ${pinned && html`<${Comparison} pinned=${pinned} pool=${pool} atS=${atS} onEnd=${() => setPinned(null)} />`}
    <${OtherPolicy}
      source=${source}
      policies=${policies}
      sequence=${pool.sequence}
      compared=${compared}
      onCompared=${(/** @type {any} */ found) => setCompared(found && { ...found, laid: laidOver(found) })}
    />
    ${view}
  `;
}

/** @param {{pinned: any, pool: import("./store.js").Pool, atS: number, onEnd: () => void}} props */
function Comparison({ pinned, pool, atS, onEnd }) {
  const names = [...new Set([...pinned.pool.jobs.keys(), ...pool.jobs.keys()])].sort();
  const words = (/** @type {any} */ job, /** @type {number} */ nowS) => {
    if (!job) return "not submitted";
    const marginS = marginOf(job, nowS);
    return `${job.activity}, ${job.num_gpus} GPUs, iteration ${job.iteration}${marginS === null ? "" : `, margin ${durationInWords(marginS)}`}`;
  };
  const rows = names.map((name) => [
    name,
    words(pinned.pool.jobs.get(name), pinned.atS),
    words(pool.jobs.get(name), atS),
  ]);
  const changed = rows.filter(([, before, after]) => before !== after);
  return html`
    <section class="panel" aria-labelledby="comparison-title">
      <div class="tools">
        <h2 id="comparison-title">Two states side by side</h2>
        <button onClick=${onEnd}>End the comparison</button>
      </div>
      <div class="scroll" tabindex="0" role="region" aria-label="Jobs that differ">
        <table>
          <thead>
            <tr>
              <th scope="col">Job</th>
              <th scope="col">${clockTime(pinned.atS)}, message ${pinned.pool.sequence}</th>
              <th scope="col">${clockTime(atS)}, message ${pool.sequence}</th>
            </tr>
          </thead>
          <tbody>
            ${changed.map(
              ([name, before, after]) =>
                html`<tr key=${name}>
                  <th scope="row">${name}</th>
                  <td>${before}</td>
                  <td>${after}</td>
                </tr>`,
            )}
          </tbody>
        </table>
      </div>
      ${changed.length === 0 && html`<p class="empty">No job differs. Move the scrubber.</p>`}
    </section>
  `;
}
