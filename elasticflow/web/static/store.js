// The pool as this browser knows it: the updates of the server, merged.

import { colourOf } from "./words.js";

/** @typedef {ReturnType<typeof emptyPool>} Pool */

export function emptyPool() {
  return {
    sequence: 0,
    nowS: 0,
    numGpus: 0,
    numGpusUsed: 0,
    /** @type {Record<string, number>} */ numGpusByType: {},
    /** @type {Map<string, any>} */ jobs: new Map(),
    numJobsLeftOut: 0,
    /** @type {any[]} */ nodes: [],
    /** @type {any[]} */ loads: [],
    /** @type {any[]} */ quotes: [],
    /** @type {any[]} */ feed: [],
  };
}

const MAX_FEED = 300;

/** The pool after an update. @param {Pool} pool @param {any} update @returns {Pool} */
export function merged(pool, update) {
  const jobs = update.whole ? new Map() : pool.jobs;
  const inOrder = [...update.jobs].sort((a, b) => a.decided_at_s - b.decided_at_s || (a.job_id < b.job_id ? -1 : 1));
  for (const job of inOrder) {
    jobs.set(job.job_id, job);
    colourOf(job.job_id);
  }
  return {
    sequence: update.sequence,
    nowS: update.now_s,
    numGpus: update.num_gpus,
    numGpusUsed: update.num_gpus_used,
    numGpusByType: update.num_gpus_by_type,
    numJobsLeftOut: Math.max(update.num_jobs - jobs.size, 0),
    jobs,
    nodes: update.nodes ?? pool.nodes,
    loads: update.loads,
    quotes: update.quotes,
    feed: (update.whole ? update.feed : [...pool.feed, ...update.feed]).slice(-MAX_FEED),
  };
}

/** A pool of the past at another time. update: all of it, or what differs from this one.
 * @param {Pool} pool @param {any} update @returns {Pool} */
export function movedTo(pool, update) {
  const jobs = new Map(pool.jobs);
  for (const name of update.gone) jobs.delete(name);
  return { ...merged({ ...pool, jobs }, update), feed: update.feed };
}

/** Follows one source. Calls its listeners at most once a frame. */
export class PoolStore {
  /** @param {string} source @param {boolean} isLive */
  constructor(source, isLive) {
    this.source = source;
    this.isLive = isLive;
    this.pool = emptyPool();
    this.staleSinceS = /** @type {number | null} */ (null);
    this.readsUpTo = 0;
    this.incomplete = "";
    this.problem = "";
    this.clockOffsetS = 0;
    this.listeners = /** @type {Set<() => void>} */ (new Set());
    this.isTelling = false;
    this.connect();
  }

  connect() {
    const events = new EventSource(`/api/stream?source=${encodeURIComponent(this.source)}`);
    events.onmessage = (event) => this.take(JSON.parse(event.data));
    events.addEventListener("clock", (event) => {
      this.clockOffsetS = Number(event.data) - Date.now() / 1000;
      this.tell();
    });
    events.addEventListener("status", (event) => {
      const status = JSON.parse(event.data);
      this.staleSinceS = status.stale_since_s;
      this.readsUpTo = status.reads_up_to;
      this.incomplete = status.incomplete;
      this.problem = "";
      this.tell();
    });
    events.onerror = () => {
      if (events.readyState === EventSource.CLOSED) {
        this.problem = "This browser's link is no longer valid: start `eflow ui` again and open its new link.";
      } else {
        this.problem = "The server of this page does not answer.";
        this.staleSinceS ??= this.nowS();
      }
      this.tell();
    };
  }

  /** @param {any} update */
  take(update) {
    this.pool = merged(this.pool, update);
    this.tell();
  }

  /** The time of the pool, which goes on between updates. */
  nowS() {
    return this.isLive ? Date.now() / 1000 + this.clockOffsetS : this.pool.nowS;
  }

  tell() {
    if (this.isTelling) return;
    this.isTelling = true;
    requestAnimationFrame(() => {
      this.isTelling = false;
      for (const listener of this.listeners) listener();
    });
  }

  /** @param {() => void} listener @returns {() => void} ends it */
  listen(listener) {
    this.listeners.add(listener);
    return () => this.listeners.delete(listener);
  }
}
