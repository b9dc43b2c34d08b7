"""`python -m benchmarks.pipeline`: the pipeline's numbers beside their goals and physical limits."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from benchmarks.pipeline.cluster import Cluster, running_cluster
from benchmarks.pipeline.epochs import measure_rebuild
from benchmarks.pipeline.growth import measure_growth
from benchmarks.pipeline.latency import measure_burst, measure_latency, raw_publishes_per_s
from benchmarks.report import machine, show
from elasticflow.shared.runtime.process.logs import configure_logs


def main(
    quick: Annotated[bool, typer.Option(help="A tenth of the work: to see that it runs, not to quote.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Only the JSON object, on standard output.")] = False,
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Measure the pipeline on this machine: real services, real NATS, fsync on every append."""
    configure_logs(level="error")
    result = asyncio.run(_measure(0.1 if quick else 1.0))
    show(_table(result), result, as_json=as_json, out=out)


async def _measure(scale: float) -> dict[str, Any]:
    async with running_cluster() as cluster:
        latency = await measure_latency(cluster, rate_per_s=50.0, num_jobs=int(1500 * scale))
        raw = await raw_publishes_per_s(cluster, int(5000 * scale))
        one_pool = await measure_burst(cluster, num_jobs=int(5000 * scale), pools=("burst",))
        detached = await measure_burst(cluster, num_jobs=int(5000 * scale), pools=("detached",), senders_wait=False)
        two_replicas = await measure_burst(cluster, num_jobs=int(5000 * scale), pools=("shared",), admissions=2)
        two_pools = await measure_burst(cluster, num_jobs=int(5000 * scale), pools=("east", "west"))
        rebuild = await measure_rebuild(cluster, num_events=int(100_000 * scale))
        idle = await measure_idle(cluster, seconds=30.0 * max(scale, 0.3))
    growth = await asyncio.to_thread(measure_growth, num_jobs=8, settled_s=3_600.0 * scale, counted_s=1_200.0 * scale)
    for burst in (one_pool, detached, two_replicas, two_pools):
        burst["share_of_raw_publishes"] = burst["decisions_per_s"] / raw
    return {
        "machine": machine(),
        "latency": latency,
        "raw_publishes_per_s": raw,
        "burst_one_pool": one_pool,
        "burst_one_pool_detached": detached,
        "burst_one_pool_two_admissions": two_replicas,
        "burst_two_pools": two_pools,
        "rebuild": rebuild,
        "idle": idle,
        "growth": growth,
    }


def _table(result: dict[str, Any]) -> Table:
    growth = result["growth"]
    latency, one, two = result["latency"], result["burst_one_pool"], result["burst_two_pools"]
    rebuild, idle = result["rebuild"], result["idle"]
    table = Table(title=f"Pipeline, {result['machine']}")
    for column in ("what", "measured", "goal", "beside it, in the same run"):
        table.add_column(column)
    append = f"one fsynced append: {latency['append_fsync_p50_ms']:.2f} ms"
    table.add_row("submit to placed, p50", f"{latency['submit_to_placed_p50_ms']:.1f} ms", "<= 10 ms", append)
    waited = f"{latency['waited_for_gpus']} of {latency['placed']} waited for GPUs that others held"
    table.add_row("submit to placed, p99", f"{latency['submit_to_placed_p99_ms']:.1f} ms", "<= 50 ms", waited)
    for percentile, goal in ((50, 10), (99, 50)):
        at_once_ms = latency[f"at_once_submit_to_placed_p{percentile}_ms"]
        table.add_row(f"the same, where GPUs were free, p{percentile}", f"{at_once_ms:.1f} ms", f"<= {goal} ms", "")
    raw = f"{result['raw_publishes_per_s']:,.0f} raw publishes/s"
    table.add_row(
        "burst, one admission",
        f"{one['decisions_per_s']:,.0f}/s",
        ">= 1,000/s",
        f"{raw}: {one['share_of_raw_publishes']:.0%}",
    )
    detached = result["burst_one_pool_detached"]
    table.add_row(
        "the same, senders do not wait",
        f"{detached['decisions_per_s']:,.0f}/s",
        "",
        f"{detached['share_of_raw_publishes']:.0%} of raw",
    )
    shared = result["burst_one_pool_two_admissions"]
    table.add_row(
        "burst, two admissions of one pool",
        f"{shared['decisions_per_s']:,.0f}/s",
        "not less than one",
        f"{shared['decisions_per_s'] / one['decisions_per_s']:.2f} x one admission",
    )
    table.add_row(
        "burst, two pools",
        f"{two['decisions_per_s']:,.0f}/s",
        "more than one pool",
        f"{two['decisions_per_s'] / one['decisions_per_s']:.2f} x one pool",
    )
    table.add_row(
        f"rebuild from {rebuild['events']:,} events",
        f"{rebuild['from_events_s']:.2f} s",
        "<= 10 s",
        f"{rebuild['events_per_s']:,.0f} events/s",
    )
    table.add_row(
        "rebuild from a snapshot",
        f"{rebuild['from_snapshot_s']:.2f} s",
        "<= 1 s",
        f"{rebuild['jobs']:,} jobs",
    )
    table.add_row("idle control plane", f"{idle['cpu_percent_total']:.1f} % of a core", "< 3 %", "")
    kinds = ", ".join(growth["by_kind_a_day"])
    table.add_row("messages a day of one old job", f"{growth['messages_a_day'] / growth['jobs']:,.0f}", "", kinds)
    return table


# --- an idle control plane -----------------------------------------------------------------------------


SERVICES = ("admission", "allocator", "placement", "monitor", "executor")


async def measure_idle(cluster: Cluster, *, seconds: float) -> dict[str, Any]:
    """CPU use of the five services and NATS, in percent of one core, with one node and no job."""
    pool = "idle"
    await cluster.bus.ensure_pool(pool)
    for service in SERVICES:
        await cluster.start(service, pool)
    await asyncio.sleep(5.0)  # start-up is over, the fork server has torch
    before = cluster.cpu_s()
    await asyncio.sleep(seconds)
    after = cluster.cpu_s()
    cluster.stop_services()
    percent = {name: 100.0 * (after[name] - before[name]) / seconds for name in after}
    return {"seconds": seconds, "cpu_percent": percent, "cpu_percent_total": sum(percent.values())}


if __name__ == "__main__":
    typer.run(main)
