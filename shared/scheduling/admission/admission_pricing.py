"""Prototype: a price by time for selective admission."""

import math
import time
from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from elasticflow.shared.scheduling.availability.fill_many_jobs import least_gpu_seconds as least_of_row
from elasticflow.shared.scheduling.compiled.compile import Floats, Integers, compiled
from elasticflow.shared.scheduling.jobs.job_table import Levels, SchedulableJob, levels_of
from elasticflow.shared.state.pool import Demand

FEWEST_SUBMISSIONS = 8
LONGEST_S = 2.0**32

P: dict[str, Any] = dict(
    B=20, first_s=300.0, usable=0.75, promised="net", theta=1.0, memory=1.0, tau_min=3600.0, horizon=1.0, mode="loss",
    fewest=8, slots="contain", self_mass=0, longest_q=1.0, oracle=None, memories=(2.0,), combine="mean", factor=1.0, wres=4.0, Wres=2.0, exclude=1,
)
TIMES: list[float] = []


class AdmissionPricing:
    def __init__(self, demand: Demand, coming: Sequence[tuple[float, float]], now_s: float, plan: Any, older: Floats | None = None) -> None:
        t0 = time.perf_counter()
        newest = np.array(demand.newest, np.float64).reshape(-1, 3)
        history = np.concatenate((older_demand(demand.full) if older is None else older, newest))
        self._coming = np.array([pair for pair in coming if pair[0] < math.inf], np.float64).reshape(-1, 2)
        self._num = len(history) + len(coming)
        self._history, self._now_s, self._num_gpus = history, now_s, plan.num_gpus
        self._observed_s = max(now_s - demand.since_s, 1.0) if demand.since_s is not None else 0.0
        jobs, rows = plan.table.jobs, plan.promised
        self._due, self._left = _promised(jobs, rows, now_s)
        self._prepare()
        TIMES.append(time.perf_counter() - t0)

    def _prepare(self) -> None:
        history, now, B = self._history, self._now_s, P["B"]
        windows = [*self._coming[:, 1]]
        if len(history):
            windows.append(np.quantile(history[:, 2], P["longest_q"]))
        if len(self._due):
            windows.append(self._due.max())
        H = P["horizon"] * max([2.0 * P["first_s"], *windows])
        first = P["first_s"]
        self._edges = np.concatenate(([0.0], first * (H / first) ** (np.arange(B) / (B - 1))))
        edges = self._edges
        K = self._num_gpus
        slack = K * (edges[None, 1:] - edges[:-1, None])  # [s, e]
        due_b = np.minimum(np.searchsorted(edges, self._due, side="left") - 1, B - 1).clip(0)
        load = np.cumsum(np.bincount(due_b, self._left, B)) if len(due_b) else np.zeros(B)
        if P["promised"] == "net":
            slack[0] = np.maximum(slack[0] - load, 0.0)
            slack *= P["usable"]
        elif P["promised"] == "gross":
            slack *= P["usable"]
            slack[0] -= load
        elif P["promised"] == "max":  # at least a small part of what is left
            net = np.maximum(slack[0] - load, 0.0)
            slack *= P["usable"]
            slack[0] = np.maximum(slack[0] - load, P.get("floor", 0.2) * net)
        self._slack = slack
        if P["oracle"] is not None:
            future = P["oracle"]
            future = future[(future[:, 0] > now) & (future[:, 0] < now + H)]
            w = np.concatenate((self._coming[:, 0], future[:, 1]))
            a_s = np.concatenate((np.zeros(len(self._coming)), future[:, 0] - now))
            W = np.concatenate((self._coming[:, 1], future[:, 2]))
            n = np.ones(len(w))
            order = np.argsort(w, kind="stable")
            self._items = (w[order], a_s[order], W[order], n[order])
            thresholds_of = _thresholds(slack, edges, *self._items)
        else:
            self._scenarios = []
            for memory in P["memories"]:
                items = _cells(self._coming, history, now, edges, self._observed_s, memory, P["tau_min"], P["factor"], P["wres"], P["Wres"])
                order = np.argsort(items[0], kind="stable")
                self._scenarios.append(tuple(x[order] for x in items))
            self._items = self._scenarios[0]
            thresholds_of = _thresholds(slack, edges, *self._items) if P["mode"] == "marginal" else None
            self._V0 = {}
        self._T = thresholds_of

    @property
    def knows_enough(self) -> bool:
        return self._num >= P["fewest"]

    def price_limit_gpu_seconds(self, window_s: float) -> float:
        if P["mode"] != "marginal":
            return math.inf
        if not self.knows_enough and P["oracle"] is None:
            return math.inf
        return float(self._T[self._bucket(window_s)]) * P["theta"]

    def _bucket(self, window_s: float) -> int:
        edges = self._edges
        e = int(np.searchsorted(edges, window_s, side="left")) - 1
        if P["slots"] == "round" and 0 < e < len(edges) - 2 and window_s - edges[e] < 0.5 * (edges[e + 1] - edges[e]):
            e -= 1
        if P["slots"] == "floor":
            e -= 1
        return min(max(e, 0), len(edges) - 2)

    def is_overpriced(self, job: SchedulableJob, free: Any = None) -> bool:
        window_s = job.deadline_s - self._now_s
        needed = least_gpu_seconds(job, self._now_s)
        if P["mode"] == "marginal":
            return needed > self.price_limit_gpu_seconds(window_s)
        if not self.knows_enough and P["oracle"] is None:
            return False
        t0 = time.perf_counter()
        if P["oracle"] is not None:
            loss = _loss(self._slack, self._edges, *self._items, needed, self._bucket(window_s))
        else:
            losses = []
            for items in self._scenarios:
                if P["exclude"]:
                    items = _without(items, needed, window_s)
                losses.append(_loss(self._slack, self._edges, *items, needed, self._bucket(window_s)))
            loss = {"mean": np.mean, "min": min, "max": max}[P["combine"]](losses)
        TIMES[-1] += time.perf_counter() - t0
        return loss > P["theta"]

    def first_affordable_s(self, job: SchedulableJob, from_s: float, within_s: float, free: Any = None) -> float | None:
        return float(from_s)


def least_gpu_seconds(job: SchedulableJob, now_s: float) -> float:
    """GPU-seconds to meet the deadline alone, at one constant number of GPUs; inf if none is fast enough."""
    return _least_gpu_seconds(levels_of(job), job.remaining_iterations, job.deadline_s - now_s)


def older_demand(full: tuple[tuple[float, ...], ...]) -> Floats:
    return np.fromiter(chain(*full), np.float64).reshape(-1, 3)


@compiled
def _least_gpu_seconds(levels: Levels, left: float, window_s: float) -> float:
    least = np.inf
    for level in range(levels.num_gpus_L.shape[0]):
        num_gpus, rate = levels.num_gpus_L[level], levels.rates_L[level]
        if left * num_gpus < least * rate and left / rate + levels.costs_L[level] <= window_s:
            least = left * num_gpus / rate
    return least


@compiled
def _promised(jobs, rows, now_s):
    due, left = np.empty(len(rows)), np.empty(len(rows))
    for i in range(len(rows)):
        row = rows[i]
        due[i] = max(jobs.deadline_J[row] - now_s, 1.0)
        left[i] = least_of_row(jobs, row, jobs.deadline_J[row] - now_s)
        if left[i] == np.inf:
            top = jobs.num_levels_J[row] - 1
            left[i] = jobs.remaining_J[row] * jobs.levels_JL[row, top] / jobs.rates_JL[row, top]
    return due, left


@compiled
def _expected(w, W, age, edges, observed, memory, tau_min, factor, count_age0):
    """Types by size, each arriving in each bucket: flattened (w, a_s, W, n)."""
    B = len(edges) - 1
    N = len(w)
    tau, scale = np.empty(B), np.empty(B)
    for b in range(B):
        middle = 0.5 * (edges[b] + edges[b + 1])
        tau[b] = max(tau_min, memory * middle)
        o = max(observed, tau_min)
        scale[b] = factor * (edges[b + 1] - edges[b]) / (tau[b] * -math.expm1(-o / tau[b]))
    ow, oa, oW, on = np.empty(N * B), np.empty(N * B), np.empty(N * B), np.empty(N * B)
    k = 0
    for i in range(N):
        if age[i] < 0.0:
            ow[k], oa[k], oW[k], on[k] = w[i], 0.0, W[i], 1.0
            k += 1
            continue
        for b in range(B):
            n = scale[b] * math.exp(-age[i] / tau[b])
            if n > 1e-4:
                ow[k], oa[k], oW[k], on[k] = w[i], 0.5 * (edges[b] + edges[b + 1]), W[i], n
                k += 1
    return ow[:k], oa[:k], oW[:k], on[:k]


@compiled
def _bucket_of(edges, at_s):
    low, high = 0, len(edges) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if edges[middle] < at_s:
            low = middle
        else:
            high = middle
    return low


@compiled
def _thresholds(slack0, edges, w, a_s, W, n):
    """The greedy in order of size: T[e] = the size at which no more fits into [now, edges[e + 1]]."""
    slack = slack0.copy()
    B = slack.shape[0]
    H = edges[B]
    T = np.full(B, np.inf)
    num_full = 0
    for e in range(B):
        low = np.inf
        for f in range(e, B):
            low = min(low, slack[0, f])
        if low <= 1e-6:
            T[e] = 0.0
            num_full = e + 1
    dead = np.zeros((B, B), np.bool_)
    for i in range(len(w)):
        a = _bucket_of(edges, a_s[i])
        end = a_s[i] + W[i]
        e = _bucket_of(edges, min(end, H))
        if dead[a, e]:
            continue
        mass = n[i] * w[i]
        if end > H:
            mass *= (H - a_s[i]) / W[i]
        fit = np.inf
        for s in range(a + 1):
            for f in range(e, B):
                fit = min(fit, slack[s, f])
        take = min(fit, mass)
        if fit <= mass:
            dead[a, e] = True
        if take <= 0.0:
            continue
        for s in range(a + 1):
            for f in range(e, B):
                slack[s, f] -= take
        if take == fit:
            for f in range(B - 1, num_full - 1, -1):
                if slack[0, f] <= 1e-6:
                    for g in range(num_full, f + 1):
                        T[g] = w[i]
                    num_full = f + 1
                    break
            if num_full == B:
                break
    return T


@compiled
def _value(slack0, edges, w, a_s, W, n):
    slack = slack0.copy()
    B = slack.shape[0]
    H = edges[B]
    value = 0.0
    dead = np.zeros((B, B), np.bool_)
    for i in range(len(w)):
        a = _bucket_of(edges, a_s[i])
        end = a_s[i] + W[i]
        e = _bucket_of(edges, min(end, H))
        if dead[a, e]:
            continue
        mass = n[i] * w[i]
        if end > H:
            mass *= (H - a_s[i]) / W[i]
        fit = np.inf
        for s in range(a + 1):
            for f in range(e, B):
                fit = min(fit, slack[s, f])
        take = min(fit, mass)
        if fit <= mass:
            dead[a, e] = True
        if take <= 0.0:
            continue
        value += take / w[i]
        for s in range(a + 1):
            for f in range(e, B):
                slack[s, f] -= take
    return value


@compiled
def _loss(slack0, edges, w, a_s, W, n, needed, bucket):
    slack = slack0.copy()
    B = slack.shape[0]
    for f in range(bucket, B):
        slack[0, f] -= needed
    # also the displaced intervals: what [0, f] lacks, only future arrivals can yield
    return _value(slack0, edges, w, a_s, W, n) - _value(slack, edges, w, a_s, W, n)


def _without(items, needed, window_s):
    w, a_s, W, n = items
    same = (a_s == 0.0) & (n == 1.0) & (np.abs(w - needed) <= 1e-9 * needed) & (np.abs(W - window_s) <= 1e-6 * window_s)
    found = np.flatnonzero(same)
    if len(found):
        keep = np.ones(len(w), bool)
        keep[found[0]] = False
        return w[keep], a_s[keep], W[keep], n[keep]
    return items


@compiled
def _cells(coming, history, now, edges, observed, memory, tau_min, factor, wres, Wres):
    """Types by size, each arriving in each bucket: flattened (w, a_s, W, n)."""
    B = len(edges) - 1
    M = 1
    while tau_min * 2.0 ** (M - 1) < memory * edges[B]:
        M += 1
    NW, NV = int(64 * wres), int(32 * Wres)
    index = np.full((NW, NV), -1, np.int64)
    N = len(history)
    count, sw, sW = np.zeros((N + 1, M)), np.zeros(N + 1), np.zeros(N + 1)
    num, weight = np.zeros(N + 1), 0.0
    cells = 0
    for i in range(N):
        w, W = history[i, 1], history[i, 2]
        iw = min(max(int((math.log2(max(w, 1e-9)) + 24.0) * wres), 0), NW - 1)
        iW = min(max(int(math.log2(max(W, 1.0)) * Wres), 0), NV - 1)
        c = index[iw, iW]
        if c < 0:
            c = index[iw, iW] = cells
            cells += 1
        num[c] += 1.0
        sw[c] += w
        sW[c] += W
        fading = math.exp(-(now - history[i, 0]) / (tau_min * 2.0 ** (M - 1)))
        for m in range(M - 1, -1, -1):
            count[c, m] += fading
            fading *= fading
    scale, which = np.empty(B), np.empty(B, np.int64)
    o = max(observed, tau_min)
    for b in range(B):
        middle = 0.5 * (edges[b] + edges[b + 1])
        m = 0
        while tau_min * 2.0**m < memory * middle and m < M - 1:
            m += 1
        tau = tau_min * 2.0**m
        which[b] = m
        scale[b] = factor * (edges[b + 1] - edges[b]) / (tau * -math.expm1(-o / tau))
    C = len(coming)
    size = cells * B + C
    ow, oa, oW, on = np.empty(size), np.empty(size), np.empty(size), np.empty(size)
    for i in range(C):
        ow[i], oa[i], oW[i], on[i] = coming[i, 0], 0.0, coming[i, 1], 1.0
    k = C
    for c in range(cells):
        w, W = sw[c] / num[c], sW[c] / num[c]
        for b in range(B):
            n = scale[b] * count[c, which[b]]
            if n > 1e-4:
                ow[k], oa[k], oW[k], on[k] = w, 0.5 * (edges[b] + edges[b + 1]), W, n
                k += 1
    return ow[:k], oa[:k], oW[:k], on[:k]
