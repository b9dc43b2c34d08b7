"""NCCL between ranks on one GPU: set-ups beside a busy group, a killed rank, aborts, and a rank that never arrives.

What it does to survivors in the minutes after a loss is watched beside other parts: torch's own threads act late. After
a collective's time-out torch's watchdog sleeps for 60 s, which it leaves for a dump, before it ends the process. So
survivors are watched for longer than both together. After a switch without a stop a peer may be late, by a compilation
for example.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to ask for a default group's backend)

import statistics
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import timedelta
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist

from benchmarks.engine.parts import Device
from benchmarks.gpu.ranks import Rank, Ranks, at_once, failures, free_bytes, synchronize
from benchmarks.report import Measured, Row
from elasticflow.services.executor.worker.group import groups
from elasticflow.services.executor.worker.group.gloo_transport import GlooTransport
from elasticflow.services.executor.worker.group.peer_loss import PeerLost
from elasticflow.services.executor.worker.group.transport import Membership, Transfer

_LOSER = 1  # the rank that is killed
_KNOWN_AFTER_S = 1.0  # the ledger reports a loss so long after it
_ABSENT_S = 8.0  # the time-out of a set-up
_BEFORE, _AFTER = 20, 10  # steps before and after a set-up beside them
_TOGETHER_S = 45.0  # for a set-up beside steps, which gives up after 30
_MIB = 1 << 20
_WITHIN_S = 60.0  # for one experiment


def measure_nccl(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    size = {"side": 64.0, "mebibytes": 4.0} if quick else {"side": 4096.0, "mebibytes": 256.0}

    def busy() -> None:
        note(beside=measure_beside(device, **size))
        note(killed=measure_killed(device, mebibytes=size["mebibytes"], watch_s=0.0))

    def waiting() -> None:
        note(absent=measure_absent(device, timeout_s=0.5 if quick else _ABSENT_S))

    at_once(busy, waiting)


def measure_beside(device: Device, **settings: float) -> Measured:
    """A group of three works while a group of four connects. Of rank 0, and the exit codes of all."""
    of_ranks = Ranks(_beside, 4, device, **settings).results(_WITHIN_S)
    return {**of_ranks[0], **failures(of_ranks)}


def _beside(rank: Rank) -> Measured:
    """connected: "beside" the steps, or "alone" between two of them, as the engine does it if the first fails."""
    free = [free_bytes(rank.device)]
    if rank.number == rank.size - 1:
        rank.await_word("busy")
        group = rank.group("four", may_connect_later=True)
        rank.await_word("boundary")
        group.connect_device()
        return {"is_right": _is_right(rank, group)}
    before = rank.group("three", rank.size - 1)
    _is_right(rank, before)
    free.append(free_bytes(rank.device))
    made: list[groups.Group] = []
    began_s, made_s = 0.0, 0.0

    def make() -> None:
        nonlocal made_s
        made.append(rank.group("four", may_connect_later=True))
        made_s = time.monotonic()

    side = int(rank.settings["side"])
    matrix = torch.randn(side, side, device=rank.device)
    alone: list[float] = []
    beside: list[float] = []
    num_after = 0
    while num_after < _AFTER and (not began_s or time.monotonic() < began_s + _TOGETHER_S):
        step_s = time.monotonic()
        ready = torch.full((1,), float(bool(made)), device=rank.device)
        torch.mm(matrix, matrix)
        before.all_reduce(ready).wait()
        are_ready = int(ready.item()) == rank.size - 1  # waits for the step
        (alone if not began_s else beside).append(time.monotonic() - step_s)
        num_after += are_ready
        if len(alone) == _BEFORE and not began_s:
            began_s = time.monotonic()
            if rank.number == 0:
                rank.tell("busy")
            threading.Thread(target=make, daemon=True).start()
    assert made, f"no group after {_TOGETHER_S:.0f} s beside steps"
    (group,) = made
    connected = "beside" if group._connect is None else "alone"
    alone_s = time.monotonic()
    if rank.number == 0:
        rank.tell("boundary")
    group.connect_device()
    connected_s = made_s - began_s + (time.monotonic() - alone_s if connected == "alone" else 0.0)
    is_right = _is_right(rank, group)
    free.append(free_bytes(rank.device))
    return {
        "connected": connected,
        "connected_s": connected_s,
        "alone_s": statistics.median(alone[1:]),
        "alone_worst_s": max(alone[1:]),
        "beside_s": statistics.median(beside[: -_AFTER or None] or beside),
        "beside_worst_s": max(beside),
        "is_right": is_right,
        "communicator_bytes": [one - other for one, other in pairwise(free)],
    }


def _is_right(rank: Rank, group: groups.Group) -> bool:
    """A sum over all ranks of the group."""
    ones = torch.ones(1024, device=rank.device)
    group.all_reduce(ones).wait()
    group.check_received()
    return bool((ones == group.size).all())


def measure_killed(device: Device, *, watch_s: float, **settings: float) -> Measured:
    """A rank of three gets SIGKILL within a transfer; the others go on as two, and are watched. Of rank 0.

    noticed_s: from the kill until NCCL says so by itself; None if the engine's report of the loss came first. abort_s:
    of that. freed_s: until the waiting thread is free.
    """
    ranks = Ranks(_killed, 3, device, watch_s=watch_s, **settings)
    if not ranks.hears("transferring"):
        return failures(ranks.results(0.0))
    killed_s = ranks.kill(_LOSER)
    time.sleep(_KNOWN_AFTER_S)
    ranks.tell("lost")
    of_ranks = ranks.results(_WITHIN_S + watch_s)
    survivor = of_ranks[0]
    if "failed_at_s" in survivor:
        survivor["failed_s"] = survivor.pop("failed_at_s") - killed_s
    return {**survivor, **failures(of_ranks)}


def _killed(rank: Rank) -> Measured:
    group = rank.group("three")
    sent, received = (torch.ones(int(rank.settings["mebibytes"]) * _MIB // 4, device=rank.device) for _ in range(2))
    closed: Measured = {}

    def close() -> None:
        rank.await_word("lost")
        began_s = time.monotonic()
        group.close()
        closed["abort_s"] = time.monotonic() - began_s

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    after, before = (rank.number + 1) % rank.size, (rank.number - 1) % rank.size
    error, num_exchanges = "", 0
    try:
        while True:
            group.exchange([Transfer(sent, after)], [Transfer(received, before)])
            group.check_received()
            num_exchanges += 1
            if num_exchanges == 2 and rank.number == _LOSER:
                rank.tell("transferring")
    except PeerLost as lost:
        error = str(lost).partition("\n")[0]
    failed_at_s = time.monotonic()
    closing.join()
    began_s = time.monotonic()
    survivors = rank.group("two", rank.size - 1, rank=min(rank.number, 1))
    is_right = _is_right(rank, survivors)
    connected_s = time.monotonic() - began_s
    until_s = time.monotonic() + rank.settings["watch_s"]
    while time.monotonic() < until_s:
        is_right = is_right and _is_right(rank, survivors)
        time.sleep(1.0)
    survivors.barrier()
    return {
        "failed_at_s": failed_at_s,
        "reason": error,
        **closed,
        "connected_s": connected_s,
        "is_right": is_right,
        "watched_s": rank.settings["watch_s"],
    }


def measure_absent(device: Device, *, timeout_s: float) -> Measured:
    """A rank that never arrives in NCCL's set-up. Of the other one: does it live, and how long did it wait?"""
    of_ranks = Ranks(_absent, 2, device, timeout_s=timeout_s).results(_WITHIN_S)
    return {**of_ranks[0], **failures(of_ranks)}


def _absent(rank: Rank) -> Measured:
    timeout_s = rank.settings["timeout_s"]
    connect = groups.device_transport

    def never(*_: object, **__: object) -> None:
        time.sleep(2 * timeout_s)  # long enough for the other's abort
        raise PeerLost("it never arrived")

    def within(gloo: GlooTransport, member: Membership, **settings: Any) -> object:
        return connect(gloo, replace(member, timeout_s=timeout_s), **settings)

    groups.device_transport = never if rank.number else within  # pyright: ignore[reportAttributeAccessIssue]
    began_s = time.monotonic()
    group = rank.group("two", may_connect_later=True)
    took_s = time.monotonic() - began_s
    square = torch.ones(64, 64, device=rank.device)
    product = torch.mm(square, square)
    synchronize(rank.device)
    return {"given_up_s": took_s, "is_connected": group._connect is None, "computes": bool((product == 64).all())}


def rows_of_nccl(measured: Measured) -> Iterable[Row]:
    if beside := measured.get("beside"):
        yield from _beside_rows(beside)
    if killed := measured.get("killed"):
        yield killed_row("SIGKILL in a transfer of three ranks", killed)
    if absent := measured.get("absent"):
        lives = "lives" if absent.get("computes") else f"ended with {absent['exit_codes'][0]}"
        after = f"after {absent['given_up_s']:.1f} s" if "given_up_s" in absent else "; ".join(absent["errors"])
        yield Row("a rank whose peer never arrives in NCCL's set-up", lives, "lives", after)


def _beside_rows(beside: Measured) -> Iterable[Row]:
    if "connected" not in beside:
        yield Row("four ranks connect beside three busy ones", _fate(beside), "right")
        return
    right = "right" if beside["is_right"] and not any(beside["exit_codes"]) else "WRONG"
    how = f"{beside['connected']} the steps, {beside['connected_s']:.2f} s"
    yield Row("four ranks connect beside three busy ones, sum afterwards", right, "right", how)
    yield Row(
        "a step while a communicator is made, median (worst)",
        f"{beside['beside_s'] * 1e3:.1f} ({beside['beside_worst_s'] * 1e3:.1f}) ms",
        beside=f"alone {beside['alone_s'] * 1e3:.1f} ({beside['alone_worst_s'] * 1e3:.1f}) ms",
    )
    first, second = (f"{each / _MIB:.0f} MiB" for each in beside["communicator_bytes"])
    yield Row("GPU memory of all ranks' second communicators", second, beside=f"the first {first}")


def killed_row(what: str, killed: Measured) -> Row:
    if "connected_s" not in killed:
        return Row(what, _fate(killed), "right")
    codes = killed["exit_codes"][0], killed["exit_codes"][2]
    right = "right" if killed["is_right"] and not any(codes) else f"WRONG, {codes}"
    times = f"failed after {killed['failed_s']:.2f} s, abort {killed.get('abort_s', 0.0):.2f} s"
    return Row(what, right, "right", f"{times}, two ranks connect in {killed['connected_s']:.2f} s")


def _fate(measured: Measured) -> str:
    """The fate of ranks without numbers."""
    return f"{'; '.join(measured['errors']) or 'no result'}, exit codes {measured['exit_codes']}"


# --- survivors and late peers, watched for minutes -----------------------------------------------------


_WATCH_S = 75.0
_LATE_S = 40.0  # more than a group that connects beside another one waits for its set-up
_TIMEOUT_S = 12.0  # of a collective, on a GPU
_WITHIN_A_WATCH_S = 30.0  # beyond a watch, for starts and set-ups


def measure_nccl_watch(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    watch_s, late_s = (1.0, 0.5) if quick else (_WATCH_S, _LATE_S)
    killed = {"mebibytes": 4.0} if quick else {"mebibytes": 64.0, "group_timeout_s": _TIMEOUT_S}

    at_once(
        lambda: note(late=measure_late(device, late_s=late_s)),
        lambda: note(survivors=measure_killed(device, watch_s=watch_s, **killed)),
        lambda: note(torch=measure_torch(device, watch_s=watch_s)),
    )


def measure_late(device: Device, *, late_s: float) -> Measured:
    """Measure whether a sum is right on both ranks after a switch, for which one of them is late."""
    of_ranks = Ranks(_late, 2, device, late_s=late_s).results(late_s + 2 * _WITHIN_A_WATCH_S)
    return {
        "late_s": late_s,
        "is_right": all(each.get("is_right", False) for each in of_ranks),
        **failures(of_ranks),
    }


def _late(rank: Rank) -> Measured:
    group = rank.group("switched", may_connect_later=True)
    group.connect_device()
    sums: list[bool] = []
    for late_s in (0.0, rank.settings["late_s"]):
        if rank.number:
            time.sleep(late_s)
        ones = torch.ones(1024, device=rank.device)
        group.all_reduce(ones).wait()
        group.check_received()
        sums.append(bool((ones == rank.size).all()))
    group.barrier()
    return {"is_right": all(sums)}


def measure_torch(device: Device, *, watch_s: float) -> Measured:
    """The exit code of a survivor of torch's own group, to compare with; None: it lived as long as it was watched."""
    ranks = Ranks(_of_torch, 2, device, watch_s=watch_s)
    if ranks.hears("summing"):
        ranks.kill(_LOSER)
    return {"exit_code": ranks.results(watch_s + _WITHIN_A_WATCH_S)[0]["exit_code"]}


def _of_torch(rank: Rank) -> Measured:
    library = "nccl" if rank.device.type == "cuda" else "gloo"
    if rank.device.type == "cuda":
        torch.cuda.set_device(rank.device)
    store = dist.PrefixStore("torch", rank.store)
    timeout = timedelta(seconds=_TIMEOUT_S)
    dist.init_process_group(library, store=store, rank=rank.number, world_size=rank.size, timeout=timeout)
    ones = torch.ones(1024, device=rank.device)
    dist.all_reduce(ones)
    if rank.number == _LOSER:
        rank.tell("summing")
        time.sleep(3600.0)
    try:
        dist.all_reduce(ones)
        bool(ones.any())
    except RuntimeError:  # gloo's
        return {}
    time.sleep(rank.settings["watch_s"])
    return {}


def rows_of_nccl_watch(measured: Measured) -> Iterable[Row]:
    if survivors := measured.get("survivors"):
        yield killed_row(f"survivors, {survivors.get('watched_s', 0.0):.0f} s after a SIGKILL in a transfer", survivors)
    if by_torch := measured.get("torch"):
        code = by_torch["exit_code"]
        yield Row("for comparison, a survivor of torch's own group", "lives" if not code else f"ends with {code}")
    if late := measured.get("late"):
        right = "right" if late["is_right"] else f"WRONG, {late['exit_codes']} {'; '.join(late['errors'])}"
        yield Row(f"a sum for which a peer is {late['late_s']:g} s late after a switch", right, "right")
