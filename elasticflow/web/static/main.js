// The frame of the page: navigation, state of the connection, and the page that the address names.

import { html, render, useEffect, useState } from "./vendor/preact-htm.js";
import { EventsPage } from "./events_page.js";
import { JobPage } from "./job_page.js";
import { NodesPage } from "./nodes_page.js";
import { PoolPage } from "./pool_page.js";
import { QuotePage } from "./quote_page.js";
import { ReplayPage } from "./replay_page.js";
import { read, useToken } from "./requests.js";
import { PoolStore } from "./store.js";
import { TenantsPage } from "./tenants_page.js";
import { clockTime, durationInWords } from "./words.js";

const PAGES = [
  { path: "", title: "Pool", page: PoolPage },
  { path: "nodes", title: "Nodes", page: NodesPage },
  { path: "quote", title: "Quote", page: QuotePage },
  { path: "replay", title: "Replay", page: ReplayPage },
  { path: "events", title: "Events", page: EventsPage },
  { path: "tenants", title: "Tenants", page: TenantsPage },
  { path: "job", title: "Job", page: JobPage },
];

/** A damaged address is shown as it is. @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** "#/job/NAME" as its page and its name. Other fragments, as that of the skip link, name no page. */
function useAddress() {
  const address = () => location.hash.replace(/^#\/?/, "").split("/").map(decoded);
  const [parts, setParts] = useState(address);
  useEffect(() => {
    const follow = () => /^(#\/|$)/.test(location.hash) && setParts(address());
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  return parts;
}

/** Draws again at each change of the pool, and each second. @param {PoolStore} store */
function useStore(store) {
  const [, setCount] = useState(0);
  useEffect(() => {
    const again = () => setCount((/** @type {number} */ count) => count + 1);
    const timer = setInterval(again, 1000);
    const end = store.listen(again);
    return () => {
      clearInterval(timer);
      end();
    };
  }, [store]);
}

/** @param {{store: PoolStore}} props */
function Status({ store }) {
  const staleS = store.staleSinceS;
  if (staleS !== null || store.problem) {
    const since =
      staleS === null ? "" : `Stale since ${clockTime(staleS)} (${durationInWords(store.nowS() - staleS)}). `;
    const why = store.problem || "NATS does not answer; the page goes on when it is back.";
    return html`<p class="status stale" role="alert"><b>▲ ${since}</b>${why}</p>`;
  }
  if (store.readsUpTo) {
    return html`<p class="status" role="status">Reading the ledger: ${store.pool.sequence} of ${store.readsUpTo}</p>`;
  }
  if (store.incomplete) return html`<p class="status stale" role="alert"><b>▲ </b>${store.incomplete}</p>`;
  return null;
}

/** @param {{store: PoolStore, session: any}} props */
function App({ store, session }) {
  useStore(store);
  const [path, name] = useAddress();
  const known = PAGES.find((each) => each.path === path) ?? PAGES[0];
  const nowS = store.nowS();
  useEffect(() => {
    document.title = `${name ?? known.title} – ElasticFlow`;
  }, [path, name]);
  return html`
    <header class="top">
      <a class="brand" href="#/"><img src="/static/icon.svg" alt="" width="22" height="22" />ElasticFlow</a>
      <nav aria-label="Pages">
        ${PAGES.filter((each) => each.path !== "job").map(
          (each) => html`<a href=${`#/${each.path}`} aria-current=${each === known ? "page" : null}>${each.title}</a>`,
        )}
      </nav>
      <p class="about">
        <span>${session.sources.live.title}</span>
        <span>${session.operator ? `operator of ${session.tenant}` : "read-only"}</span>
        <time>${clockTime(nowS)}</time>
      </p>
    </header>
    <${Status} store=${store} />
    <main id="content" tabindex="-1">
      <${known.page} key=${`${path}/${name ?? ""}`} store=${store} session=${session} name=${name ?? ""} nowS=${nowS} />
    </main>
  `;
}

async function start() {
  const app = /** @type {HTMLElement} */ (document.getElementById("app"));
  app.textContent = "";
  try {
    const session = await read("/api/session");
    useToken(session.csrf_token);
    const store = new PoolStore("live", session.sources.live.is_live);
    render(html`<${App} store=${store} session=${session} />`, app);
  } catch (error) {
    render(html`<main><p class="status stale" role="alert">${String(error)}</p></main>`, app);
  }
}

/** The skip link leaves the address as it is, which names the page. */
document.querySelector(".skip")?.addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("content")?.focus();
});
start();
