"""Times in seconds as a row of a table shows them."""

from collections.abc import Sequence

from benchmarks.report import Measured


def spread(times_s: Sequence[float]) -> Measured:
    """Their median, 95th percentile and maximum, in milliseconds."""
    ordered = sorted(times_s)
    at = [ordered[min(len(ordered) - 1, int(part * len(ordered)))] for part in (0.5, 0.95, 1.0)]
    return dict(zip(("p50_ms", "p95_ms", "max_ms"), (round(1e3 * each_s, 1) for each_s in at), strict=True)) | {
        "count": len(ordered)
    }


def p95(measured: Measured) -> str:
    return f"{measured['p95_ms']:.0f} ms"


def others(measured: Measured) -> str:
    return f"p50 {measured['p50_ms']:.0f} ms, worst of {measured['count']} {measured['max_ms']:.0f} ms"
