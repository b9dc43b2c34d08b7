"""Flip single bits of a pool's data, ask, and write what became of the answers.

python -m benchmarks.damage --flips 200 --out benchmarks/results/damage.json
"""

import asyncio
import json
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.damage.questions import LIMIT_S, Answer, answers
from benchmarks.damage.recorded_pool import RecordedPool, record
from benchmarks.regressions.pages import current_commit
from elasticflow.shared.runtime.process.logs import configure_logs

_NOT_DATA = ("server.conf", "server.pid", "nats-server.log", "token")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """One bit of one file. is_clean: as in `RecordedPool.copied`."""

    file: str
    offset: int
    bit: int
    is_clean: bool

    @property
    def place(self) -> str:
        """The kind of file, without the stream's pool."""
        path = Path(self.file)
        if path.parts[0] == "archives":
            return f"archives/*{path.suffixes[-1]}"
        stream = path.parts[path.parts.index("streams") + 1] if "streams" in path.parts else ""
        return f"{stream.removesuffix('_default')}/{path.name}"

    def apply(self, folder: Path) -> None:
        content = bytearray((folder / self.file).read_bytes())
        content[self.offset] ^= 1 << self.bit
        (folder / self.file).write_bytes(content)


def flips(pool: RecordedPool, number: int, seed: int, only: str = "*") -> Iterator[Flip]:
    """Each file in turn, at a drawn place; every second one after a kill of NATS. only: a pattern of their paths."""
    draw = np.random.default_rng(seed)
    files = [path for path in sorted(pool.folder.rglob("*")) if path.is_file() and path.name not in _NOT_DATA]
    files = [path for path in files if path.stat().st_size and path.relative_to(pool.folder).match(only)]
    for index in range(number):
        path, is_clean = files[index % len(files)], bool((index // len(files)) % 2 == 0)
        if not is_clean and path.name == "index.db":
            is_clean = True
        yield Flip(
            file=str(path.relative_to(pool.folder)),
            offset=int(draw.integers(path.stat().st_size)),
            bit=int(draw.integers(8)),
            is_clean=is_clean,
        )


def ask(
    pool: RecordedPool, folder: Path, flip: Flip | None, right: dict[str, Any] | None, *, limit_s: float = LIMIT_S
) -> tuple[list[Answer], dict[str, Any]]:
    """Ask a copy of the pool, with the flip applied to it."""
    copy = pool.copied(folder, is_clean=flip is None or flip.is_clean)
    if flip is not None:
        flip.apply(copy.folder)
    return asyncio.run(answers(copy, right, limit_s=limit_s))


def main(
    num_flips: Annotated[int, typer.Option("--flips", help="So many bits, each of a pool of its own.")] = 200,
    seed: Annotated[int, typer.Option(help="Of the places of the bits.")] = 1,
    only: Annotated[str, typer.Option(help="Files whose path ends so: 'EF_LEDGER*/msgs/*.blk'.")] = "*",
    out: Annotated[Path | None, typer.Option(help="Also write the JSON object to this file.")] = None,
) -> None:
    """Flip single bits of a pool's data, ask, and write what became of the answers."""
    configure_logs("console", level="error")
    by_place: dict[str, Counter[str]] = {}
    bad: list[dict[str, Any]] = []
    slowest_s = 0.0
    with tempfile.TemporaryDirectory(prefix="damage-") as root:
        pool = record(Path(root) / "recorded")
        _, right = ask(pool, Path(root) / "copy", None, None)
        for number, flip in enumerate(flips(pool, num_flips, seed, only), start=1):
            if number % 20 == 0:
                print(f"flip {number} of {num_flips}", flush=True)
            found, _ = ask(pool, Path(root) / "copy", flip, right)
            worst = [answer for answer in found if not answer.is_good]
            outcomes = {str(answer.outcome) for answer in worst or found} - (set() if worst else {"right"})
            place = f"{flip.place}{'' if flip.is_clean else ', after a kill'}"
            by_place.setdefault(place, Counter())[" and ".join(sorted(outcomes)) or "right"] += 1
            slowest_s = max(slowest_s, *(answer.seconds for answer in found))
            for answer in worst:
                bad.append({"file": flip.file, "offset": flip.offset, "bit": flip.bit, "is_clean": flip.is_clean})
                bad[-1] |= {"question": answer.question, "outcome": str(answer.outcome), "text": answer.text}
                print("BAD", json.dumps(bad[-1]), flush=True)
    for place, counts in sorted(by_place.items()):
        print(f"{place:<45} {dict(counts)}")
    print(f"{num_flips} flips, {len(bad)} bad answers, slowest answer {slowest_s:.1f} s")
    if out:
        result = {
            "commit": current_commit(),
            "flips": num_flips,
            "seed": seed,
            "slowest_answer_s": round(slowest_s, 1),
            "bad": bad,
            "outcomes": {place: dict(counts) for place, counts in sorted(by_place.items())},
        }
        out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    typer.run(main)
