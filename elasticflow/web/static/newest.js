// The answer to the newest of several questions: one request at a time, and none for what was passed over.

import { useEffect, useRef, useState } from "./vendor/preact-htm.js";

const ASK_AGAIN = 503;
const ASK_AGAIN_MS = 1000;
const pause = (/** @type {number} */ ms) => new Promise((end) => setTimeout(end, ms));

/** The last answer, which stays while a newer one is awaited or fails; `again`: the same is asked again, because of the
 * problem. spacingMs: between two requests, at least.
 * @template Q, A
 * @param {(question: Q) => Promise<A>} ask @param {Q} question @param {number} [spacingMs]
 * @returns {{answer: A | null, problem: string, again: boolean}} */
export function useNewest(ask, question, spacingMs = 0) {
  const [found, setFound] = useState({ answer: /** @type {A | null} */ (null), problem: "", again: false });
  const wanted = useRef(/** @type {{question: Q} | null} */ (null));
  const isBusy = useRef(false);
  const hasEnded = useRef(false);
  const load = async () => {
    isBusy.current = true;
    while (wanted.current && !hasEnded.current) {
      const asked = wanted.current;
      wanted.current = null;
      const spaced = spacingMs && pause(spacingMs);
      try {
        setFound({ answer: await ask(asked.question), problem: "", again: false });
      } catch (/** @type {any} */ error) {
        const again = error.status === ASK_AGAIN;
        setFound((/** @type {any} */ before) => ({ answer: before.answer, problem: error.message, again }));
        if (again) await pause(ASK_AGAIN_MS);
        if (again) wanted.current ??= asked;
      }
      await spaced;
    }
    isBusy.current = false;
  };
  useEffect(() => {
    wanted.current = { question };
    if (!isBusy.current) load();
  }, [JSON.stringify(question)]);
  useEffect(
    () => () => {
      hasEnded.current = true;
    },
    [],
  );
  return found;
}
