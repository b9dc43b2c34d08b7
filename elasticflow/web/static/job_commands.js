// Commands of an operator on one job; each shows what it will do before it is sent.

import { html, useRef, useState } from "./vendor/preact-htm.js";
import { jobPath, write } from "./requests.js";
import { clockTime } from "./words.js";

/** Without `offer`: cancel, amend and checkpoint. @param {{row: any, offer?: number}} props */
export function JobCommands({ row, offer }) {
  const [answer, setAnswer] = useState(/** @type {{good: boolean, text: string} | null} */ (null));
  const [busy, setBusy] = useState(false);
  const cancelling = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const amending = useRef(/** @type {HTMLDialogElement | null} */ (null));
  const send = async (/** @type {string} */ command, /** @type {object} */ body) => {
    setBusy(true);
    try {
      const reply = await write(`${jobPath(row.job_id)}/${command}`, body);
      setAnswer({
        good: reply.accepted,
        text: `${reply.type}${reply.text && `: ${reply.text}`}${reply.job_id !== row.job_id ? ` (${reply.job_id})` : ""}`,
      });
    } catch (error) {
      setAnswer({ good: false, text: String(error) });
    }
    setBusy(false);
  };
  const amend = (/** @type {SubmitEvent} */ event) => {
    const form = new FormData(/** @type {HTMLFormElement} */ (event.target));
    const wanted = Object.fromEntries(
      [...form].filter(([, value]) => value !== "").map(([name, value]) => [name, Number(value)]),
    );
    send("amend", wanted);
  };
  const close = (/** @type {any} */ dialog) => () => dialog.current?.close();
  const buttons =
    offer === undefined
      ? html`<span class="buttons">
          <button disabled=${busy} onClick=${() => amending.current?.showModal()}>Amend …</button>
          <button disabled=${busy} onClick=${() => send("checkpoint", {})}>Checkpoint</button>
          <button disabled=${busy} class="danger" onClick=${() => cancelling.current?.showModal()}>
            Cancel the job …
          </button>
        </span>`
      : html`<button disabled=${busy} onClick=${() => send("take-offer", { offer })}>Take it</button>`;
  return html`
    <div class=${offer === undefined ? "actions" : ""}>${buttons}</div>
    ${answer && html`<p class=${answer.good ? "done" : "problem"} role="status">${answer.text}</p>`}
    ${
      offer === undefined &&
      html` <dialog ref=${cancelling} aria-labelledby="cancel-title">
          <form method="dialog" onSubmit=${() => send("cancel", {})}>
            <h2 id="cancel-title">Cancel ${row.job_id}?</h2>
            <p>It stops, and its GPUs go to other jobs. This cannot be undone.</p>
            <span class="buttons"
              ><button class="danger">Cancel the job</button>
              <button type="button" onClick=${close(cancelling)}>Keep it</button></span
            >
          </form>
        </dialog>
        <dialog ref=${amending} aria-labelledby="amend-title">
          <form method="dialog" onSubmit=${amend}>
            <h2 id="amend-title">Amend ${row.job_id}</h2>
            <p>Admission accepts it only if all promises can still be kept.</p>
            <label
              >Deadline, seconds from now${row.deadline_s ? ` (now ${clockTime(row.deadline_s)})` : ""}
              <input name="deadline_in_s" type="number" min="1" step="1"
            /></label>
            <label
              >Iterations <input name="max_iterations" type="number" min="1" step="1" placeholder=${row.max_iterations}
            /></label>
            <span class="buttons"
              ><button class="primary">Amend</button>
              <button type="button" onClick=${close(amending)}>Leave it</button></span
            >
          </form>
        </dialog>`
    }
  `;
}
