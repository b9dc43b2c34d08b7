// The answer to the newest of several questions: one request at a time, and none for what was passed over.

import { useEffect, useLayoutEffect, useRef, useState } from "./vendor/preact-htm.js";

const ASK_AGAIN = 503;
const ASK_AGAIN_MS = 1000;
const AT_ONCE = 10;
const pause = (/** @type {number} */ ms) => new Promise((end) => setTimeout(end, ms));

/** Lets some requests go at once, and then one each spacingMs. @param {number} spacingMs @param {number} atOnce */
function turns(spacingMs, atOnce) {
  let [allowed, sinceMs] = [atOnce, Date.now()];
  return async () => {
    const nowMs = Date.now();
    allowed = Math.min(atOnce, allowed + (nowMs - sinceMs) / spacingMs);
    sinceMs = nowMs;
    allowed -= 1;
    if (allowed < 0) await pause(-allowed * spacingMs);
  };
}

/** The last answer, which stays while a newer one is awaited or fails; `again`: the same is asked again, because of the
 * problem. spacingMs: between two requests, beyond the first ten.
 * @template Q, A
 * @param {(question: Q) => Promise<A>} ask @param {Q} question @param {number} [spacingMs]
 * @returns {{answer: A | null, problem: string, again: boolean}} */
export function useNewest(ask, question, spacingMs = 0) {
  const [found, setFound] = useState({ answer: /** @type {A | null} */ (null), problem: "", again: false });
  const wanted = useRef(/** @type {{question: Q} | null} */ (null));
  const isBusy = useRef(false);
  const hasEnded = useRef(false);
  const turn = useRef(spacingMs ? turns(spacingMs, AT_ONCE) : async () => {});
  const load = async () => {
    isBusy.current = true;
    while (wanted.current && !hasEnded.current) {
      await turn.current();
      const asked = wanted.current;
      wanted.current = null;
      try {
        setFound({ answer: await ask(asked.question), problem: "", again: false });
      } catch (/** @type {any} */ error) {
        const again = error.status === ASK_AGAIN;
        setFound((/** @type {any} */ before) => ({ answer: before.answer, problem: error.message, again }));
        if (again) await pause(ASK_AGAIN_MS);
        if (again) wanted.current ??= asked;
      }
    }
    isBusy.current = false;
  };
  useLayoutEffect(() => {
    // at once: an effect would wait for the next frame
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
