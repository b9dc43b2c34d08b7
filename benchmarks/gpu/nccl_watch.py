"""What NCCL does to survivors in the minutes after a loss, beside other parts: torch's own threads act late.

After a collective's time-out torch's watchdog sleeps for 60 s, which it leaves for a dump, before it ends the process.
So survivors are watched for longer than both together. After a switch without a stop a peer may be late, by a
compilation for example.
"""
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false
# (torch.distributed has no public way to ask for a default group's backend)

import time
from collections.abc import Callable, Iterable
from datetime import timedelta

import torch
import torch.distributed as dist

from benchmarks.engine.parts import Device
from benchmarks.gpu.nccl import killed_row, measure_killed
from benchmarks.gpu.ranks import Rank, Ranks, at_once, failures
from benchmarks.report import Measured, Row

_WATCH_S = 75.0
_LATE_S = 40.0  # more than a group that connects beside another one waits for its set-up
_TIMEOUT_S = 12.0  # of a collective, on a GPU
_WITHIN_S = 30.0  # beyond a watch, for starts and set-ups
_LOSER = 1


def measure(device: Device, *, quick: bool, note: Callable[..., None]) -> None:
    watch_s, late_s = (1.0, 0.5) if quick else (_WATCH_S, _LATE_S)
    killed = {"mebibytes": 4.0} if quick else {"mebibytes": 64.0, "group_timeout_s": _TIMEOUT_S}

    at_once(
        lambda: note(late=measure_late(device, late_s=late_s)),
        lambda: note(survivors=measure_killed(device, watch_s=watch_s, **killed)),
        lambda: note(torch=measure_torch(device, watch_s=watch_s)),
    )


def measure_late(device: Device, *, late_s: float) -> Measured:
    """Measure whether a sum is right on both ranks after a switch, for which one of them is late."""
    of_ranks = Ranks(_late, 2, device, late_s=late_s).results(late_s + 2 * _WITHIN_S)
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
    return {"exit_code": ranks.results(watch_s + _WITHIN_S)[0]["exit_code"]}


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


def rows(measured: Measured) -> Iterable[Row]:
    if survivors := measured.get("survivors"):
        yield killed_row(f"survivors, {survivors.get('watched_s', 0.0):.0f} s after a SIGKILL in a transfer", survivors)
    if by_torch := measured.get("torch"):
        code = by_torch["exit_code"]
        yield Row("for comparison, a survivor of torch's own group", "lives" if not code else f"ends with {code}")
    if late := measured.get("late"):
        right = "right" if late["is_right"] else f"WRONG, {late['exit_codes']} {'; '.join(late['errors'])}"
        yield Row(f"a sum for which a peer is {late['late_s']:g} s late after a switch", right, "right")
