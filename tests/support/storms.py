"""`python -m tests.support.storms 10000`: new short storms of simulated pools, and what struck in them.

Exits 1 if a seed breaks an invariant; `short_storm(seed)` repeats it, byte for byte.
"""

import argparse
import secrets
from collections import Counter
from concurrent.futures import ProcessPoolExecutor

from elasticflow.shared.messages.events import GenerationStarted, NodeLost, PlanDecided, WorkerCrashed
from testbed.simulated_runs import problems, short_storm

COUNTED = {WorkerCrashed: "worker crashed", NodeLost: "node lost", PlanDecided: "decision"}
CHUNK = 20  # seeds that a process takes at once


def tried(seed: int) -> tuple[int, list[str], Counter[str]]:
    """The seed, what is wrong with its storm, and how often each kind of fault and event occurred."""
    cluster = short_storm(seed)
    counts = cluster.num_struck + Counter[str]()
    for entry in cluster.entries:
        counts[COUNTED.get(type(entry.message), "another message")] += 1
        if isinstance(entry.message, GenerationStarted) and entry.message.lost_checkpoints:
            counts["start from an older checkpoint"] += 1
    return seed, list(problems(cluster)), counts


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.support.storms", description=__doc__)
    parser.add_argument("seeds", type=int)
    parser.add_argument("--first", type=int, default=secrets.randbelow(1 << 30), help="seed (default: by chance)")
    parser.add_argument("--processes", type=int, default=2)
    arguments = parser.parse_args()
    print(f"seeds {arguments.first} to {arguments.first + arguments.seeds - 1}", flush=True)
    counts, num_broken = Counter[str](), 0
    with ProcessPoolExecutor(arguments.processes) as processes:
        seeds = range(arguments.first, arguments.first + arguments.seeds)
        for seed, wrong, occurred in processes.map(tried, seeds, chunksize=CHUNK):
            counts += occurred
            num_broken += bool(wrong)
            if wrong:
                print(f"seed {seed}:", *wrong[:5], sep="\n  ", flush=True)
    print("| fault or message | times |\n|---|---|")
    for kind, number in counts.most_common():
        print(f"| {kind} | {number:,} |")
    print(f"{arguments.seeds:,} storms, {num_broken} broken")
    return bool(num_broken)


if __name__ == "__main__":
    raise SystemExit(main())
