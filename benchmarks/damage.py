"""What one changed bit of a pool's data leads to: a recorded pool, a changed bit in a copy, questions, their answers.

python -m benchmarks.damage --flips 200 --out benchmarks/results/damage.json
"""

import asyncio
import json
import os
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from benchmarks.regressions.pages import current_commit
from elasticflow.client import doctor
from elasticflow.client.archive_ledger import archive
from elasticflow.client.ledger import ARCHIVES, LedgerView
from elasticflow.client.operator_decisions import configure
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.shared.errors import ElasticFlowError
from elasticflow.shared.messages import codec, events
from elasticflow.shared.messages.pool_config import PoolConfig
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.bus import NatsBus, connect_nats
from elasticflow.shared.runtime.bus.nats.embedded_server import EmbeddedServer
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.runtime.process.logs import configure_logs, get_log
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_bookmark import LedgerBookmark, older_ledger
from elasticflow.shared.runtime.service.ledger_encoding import read_message, subject_of
from elasticflow.shared.runtime.service.snapshot_store import Snapshot
from elasticflow.shared.state.fold.ledger_fold import evolve
from elasticflow.shared.state.pool import PoolState

# --- a pool with every kind of stored data -------------------------------------------------------------


POOL = "default"
CLOCK = SystemClock()
CODE = bytes(range(256)) * 3_000  # two chunks
TENANT, NODE = "lab", "node-0"
OBJECTS = (
    (streams.code_bucket(POOL), streams.code_name(TENANT, "ab" * 32)),
    (streams.artifact_bucket(POOL), streams.artifact_name(TENANT, NODE, "ab" * 32, 0)),
)
VALUES = (
    (streams.node_bucket(POOL), NODE),
    (streams.log_bucket(POOL), streams.log_key(TENANT, NODE, "job", "0")),
    (streams.view_bucket(POOL), streams.POOL_VIEW_KEY),
    (streams.state_bucket(POOL), "lease"),
)
VALUE = b"value " * 40
_BEFORE_EPOCH, _BEFORE_SNAPSHOT, _AFTER_SNAPSHOT = 8, 20, 4  # decisions


@dataclass(frozen=True, slots=True)
class RecordedPool:
    """folder: with NATS's data in `nats`, and archives in `archives`."""

    folder: Path

    @property
    def archives(self) -> Path:
        return self.folder / "archives"

    def server(self) -> EmbeddedServer:
        return EmbeddedServer(self.folder / "nats", token="recorded")

    def copied(self, folder: Path, *, is_clean: bool = True) -> "RecordedPool":
        """is_clean: NATS was stopped; else it was killed, and reads all messages when it starts."""
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self.folder, folder)
        if not is_clean:
            for index in (folder / "nats").rglob("index.db"):
                index.unlink()
        return RecordedPool(folder)

    def stream_folder(self, stream: str) -> Path:
        return self.folder / "nats" / "jetstream" / "$G" / "streams" / stream


def record(folder: Path) -> RecordedPool:
    """An archived epoch, of which only the archive is left, a snapshot, and messages after both; objects and values; a
    bookmark at the end."""
    pool = RecordedPool(folder)
    with pool.server() as server:
        asyncio.run(_fill(server.url, pool))
    return pool


async def _fill(url: str, pool: RecordedPool) -> None:
    bus = await connect_nats(url, name="record")
    try:
        await bus.ensure_pool(POOL)
        await _decide(url, bus, _BEFORE_EPOCH)
        await archive(url, POOL, pool.archives, CLOCK, delete=True, on_message=lambda done, of: None)
        await _decide(url, bus, _BEFORE_SNAPSHOT)
        state, chain = await LedgerView(bus, POOL).state_and_chain()
        await snapshot_store.save(bus, POOL, Snapshot(state=state, chain=chain.digest), CLOCK.now_s())
        await _decide(url, bus, _AFTER_SNAPSHOT)
        for bucket, name in OBJECTS:
            await bus.put_object(bucket, name, CODE)
        for bucket, key in VALUES:
            await bus.put_value(bucket, key, VALUE)
        last = await bus.last_sequence(POOL)
        async for (newest,) in bus.read(POOL, after_sequence=last - 1, up_to=last):
            LedgerBookmark.of_reader(pool.folder, POOL, NODE).move(newest)
    finally:
        await bus.close()


async def _decide(url: str, bus: NatsBus, times: int) -> None:
    """Each with an event of a node after it."""
    for _ in range(times):
        number = await bus.last_sequence(POOL)
        await configure(url, POOL, PoolConfig(leave_s=30.0 + number), CLOCK)
        joined = events.NodeJoined(
            node_id=NODE, incarnation=f"run-{number}", num_gpus=4, device="cpu", at_s=CLOCK.now_s()
        )
        message_id = f"joined-{number}"
        data = codec.encode(joined, id=message_id, recorded_at_s=joined.at_s)
        await bus.append(subject_of(POOL, joined), data, message_id=message_id)


# --- what clients and services ask a pool --------------------------------------------------------------


LIMIT_S = 10.0


class Outcome(StrEnum):
    """RIGHT: as before the damage. NAMED: an error that says what is wrong. WARNED: another answer, and a check of
    `eflow up` and `eflow doctor` names the damage. MISSING: NATS has dropped a value, as if it had never been stored;
    services write heartbeats, leases and views again, and a log lacks lines."""

    RIGHT = "right"
    NAMED = "named"
    WARNED = "warned"
    MISSING = "missing"
    SILENT = "another answer, and no word"
    CRASHED = "an unexpected exception"
    HANGS = "no answer in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """text: of the error, or what was answered."""

    question: str
    outcome: Outcome
    text: str = ""
    seconds: float = 0.0

    @property
    def is_good(self) -> bool:
        return self.outcome in (Outcome.RIGHT, Outcome.NAMED, Outcome.WARNED, Outcome.MISSING)


Question = Callable[[], Awaitable[Any]]


@asynccontextmanager
async def asked(pool: RecordedPool) -> AsyncIterator["dict[str, Question]"]:
    """The questions to a pool whose server runs here."""
    with pool.server() as server:
        bus = await connect_nats(server.url, name="asks")
        try:
            yield _questions(bus, server.url, pool.folder)
        finally:
            await bus.close()


async def answers(
    pool: RecordedPool, right: dict[str, Any] | None = None, *, limit_s: float = LIMIT_S
) -> tuple[list[Answer], dict[str, Any]]:
    """All answers, and what was answered. right: the answers before the damage. limit_s: for each answer."""
    found: list[Answer] = []
    values: dict[str, Any] = {}
    os.environ[ARCHIVES] = str(pool.archives)
    try:
        async with asked(pool) as questions:
            for name, question in questions.items():
                found.append(await _answer(name, question, values, right, limit_s))
    except ElasticFlowError as error:
        found.append(Answer(question="start of NATS", outcome=Outcome.NAMED, text=str(error)))
    finally:
        del os.environ[ARCHIVES]
    return _with_warnings(found, values), values


async def _answer(
    name: str, question: Question, values: dict[str, Any], right: dict[str, Any] | None, limit_s: float
) -> Answer:
    began_s = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            values[name] = await question()
        same = right is None or values[name] == right[name]
        outcome, text = (Outcome.RIGHT if same else Outcome.SILENT), "" if same else repr(values[name])[:200]
    except TimeoutError:
        outcome, text = Outcome.HANGS, ""
    except ElasticFlowError as error:
        outcome, text = Outcome.NAMED, str(error)
    except Exception as error:
        outcome, text = Outcome.CRASHED, f"{type(error).__name__}: {error}"
    return Answer(question=name, outcome=outcome, text=text, seconds=time.monotonic() - began_s)


def _with_warnings(found: list[Answer], values: dict[str, Any]) -> list[Answer]:
    """Another answer is no silent one if `eflow doctor` names the damage, and of a ledger `eflow up`, too."""
    named = bool(values.get("doctor"))
    warned = named and bool(values.get("warning"))
    missing = {name for name, value in values.items() if name.startswith("value") and value is None}

    def judged(answer: Answer) -> Answer:
        if answer.outcome is not Outcome.SILENT:
            return answer
        if warned or answer.question in ("warning", "doctor") or (named and answer.question in missing):
            return replace(answer, outcome=Outcome.WARNED)
        return replace(answer, outcome=Outcome.MISSING) if answer.question in missing else answer

    return [judged(each) for each in found]


def _questions(bus: NatsBus, url: str, folder: Path) -> dict[str, Question]:
    ledger = LedgerView(bus, POOL)

    async def warning() -> str | None:
        return await older_ledger(bus, POOL, folder)

    async def configured() -> Any:
        return (await configure(url, POOL, None, CLOCK)).leave_s

    async def service() -> Any:
        """What a service does at its start: the newest snapshot, and the messages after it."""
        snapshot = await snapshot_store.load(bus, POOL, get_log("damage"))
        state = PoolState() if snapshot is None else snapshot.state
        last = await bus.last_sequence(POOL)
        async for batch in bus.read(POOL, after_sequence=state.sequence, up_to=last):
            for stored in batch:
                state = evolve(state, read_message(stored), stored.sequence)
        return _told(state)

    async def jobs() -> Any:
        return _told(await ledger.state())

    async def history() -> Any:
        return [stored.data async for stored, _ in ledger.entries(up_to=await ledger.last_sequence())]

    async def findings() -> list[str]:
        endpoint = Endpoint(nats_url=url, pool=POOL, data_dir=folder)
        found = await doctor.examine(endpoint, replicas=1, clock=CLOCK, environment={})
        return [each.problem for each in found if each.problem and each.check in ("connection", "streams")]

    asked: dict[str, Question] = {
        "doctor": findings,
        "warning": warning,
        "configure": configured,
        "service": service,
        "jobs": jobs,
        "history": history,
    }
    for bucket, name in OBJECTS:
        asked[f"object in {bucket}"] = lambda bucket=bucket, name=name: _object(bus, bucket, name)
    for bucket, key in VALUES:
        asked[f"value in {bucket}"] = lambda bucket=bucket, key=key: _value(bus, bucket, key)
    return asked


async def _object(bus: NatsBus, bucket: str, name: str) -> bool:
    return await bus.get_object(bucket, name, max_bytes=1 << 30) == CODE


async def _value(bus: NatsBus, bucket: str, key: str) -> bool | None:
    found = await bus.get_value(bucket, key)
    return None if found is None else found.data == VALUE


def _told(state: PoolState) -> Any:
    return (
        state.sequence,
        state.config.leave_s,
        sorted((node.node_id, node.incarnation) for node in state.nodes.values()),
    )


# --- the sweep -----------------------------------------------------------------------------------------


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
