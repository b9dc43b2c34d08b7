"""The monitor deletes uploaded code once no live job, load or reservation needs it and it is old."""

from types import SimpleNamespace
from typing import Any

from elasticflow.services.monitor.service import OldObjects
from elasticflow.shared.messages import codec, subjects
from elasticflow.shared.messages.events import EpochBegan, JobAdmitted, SnapshotSaved
from elasticflow.shared.messages.pool_config import DAY_S
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.service import snapshot_store
from elasticflow.shared.runtime.service.ledger_encoding import subject_of
from elasticflow.shared.state import snapshot_encoding
from elasticflow.simulator.pipeline.memory_bus import MemoryBus
from elasticflow.simulator.pipeline.simulated_process import SilentLog
from testbed.histories import NOW_S, History, pool, spec

POOL = "p"
CODE, SNAPSHOTS = streams.code_bucket(POOL), streams.snapshot_bucket(POOL)
LIVE, ENDED, YOUNG = "a" * 64, "b" * 64, "c" * 64
OF_EPOCH, SAVED = snapshot_store.epoch_object(LIVE), snapshot_store.saved_object(LIVE)


def with_live_job(**config: Any) -> History:
    return pool(1, **config).then(
        JobAdmitted(
            job_id="live",
            tenant="lab",
            spec=spec(code_digest=LIVE),
            deadline_s=NOW_S + 100.0,
            minimum_satisfactory_share=(),
            gpu_seconds=100.0,
            at_s=NOW_S,
        )
    )


async def kept_after_a_sweep(history: History, *, age_s: float = 31 * DAY_S) -> list[str]:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    now_s = (await bus.ledger_end(POOL)).at_s
    for bucket, name in (
        *((CODE, streams.code_name("lab", digest)) for digest in (LIVE, ENDED, YOUNG)),
        (CODE, streams.code_name("other", LIVE)),
        *((SNAPSHOTS, snapshot_store.saved_object(digest)) for digest in (LIVE, ENDED)),
        *((SNAPSHOTS, snapshot_store.epoch_object(digest)) for digest in (LIVE, ENDED)),
    ):
        await bus.put_object(bucket, name, b"")
        bus.broker.object_times_s[bucket, name] = now_s - (0.0 if YOUNG in name else age_s)
    began = EpochBegan(based_on=1, chain="0" * 32, snapshot=LIVE, fold=1, at_s=NOW_S)
    await bus.append(subjects.epoch(POOL), codec.encode(began, id="1", recorded_at_s=NOW_S), message_id="1")
    saved = SnapshotSaved(based_on=1, snapshot=LIVE, shape=snapshot_encoding.SHAPE, at_s=NOW_S)
    await bus.append(subject_of(POOL, saved), codec.encode(saved, id="2", recorded_at_s=NOW_S), message_id="2")
    process: Any = SimpleNamespace(bus=bus, settings=SimpleNamespace(pool=POOL), log=SilentLog())
    host: Any = SimpleNamespace(folded=history.state)
    await OldObjects(process, host).sweep()
    objects = bus.broker.objects
    return sorted([*objects[CODE], *objects[SNAPSHOTS]])


async def test_code_of_live_jobs_young_code_and_the_present_snapshot_stay() -> None:
    kept = await kept_after_a_sweep(with_live_job())
    assert kept == [OF_EPOCH, f"lab/{LIVE}", f"lab/{YOUNG}", SAVED]


async def test_the_pool_says_how_long_code_is_kept() -> None:
    assert len(await kept_after_a_sweep(with_live_job(code_kept_s=None))) == 8
    assert len(await kept_after_a_sweep(with_live_job(), age_s=29 * DAY_S)) == 8
    assert len(await kept_after_a_sweep(with_live_job(code_kept_s=DAY_S), age_s=29 * DAY_S)) == 4


async def test_code_of_an_ended_job_goes() -> None:
    kept = await kept_after_a_sweep(with_live_job().finished("live", at_s=NOW_S + 10.0))
    assert kept == [OF_EPOCH, f"lab/{YOUNG}", SAVED]


async def test_artifacts_are_deleted_by_age() -> None:
    bus = MemoryBus()
    await bus.ensure_pool(POOL)
    now_s = (await bus.ledger_end(POOL)).at_s
    bucket = streams.artifact_bucket(POOL)
    for digest, age_s in ((YOUNG, 6 * DAY_S), (ENDED, 8 * DAY_S)):
        name = streams.artifact_name("lab", "node-0", digest, 0)
        await bus.put_object(bucket, name, b"")
        bus.broker.object_times_s[bucket, name] = now_s - age_s
    saved = SnapshotSaved(based_on=1, snapshot=LIVE, shape=snapshot_encoding.SHAPE, at_s=NOW_S)
    await bus.append(subject_of(POOL, saved), codec.encode(saved, id="2", recorded_at_s=NOW_S), message_id="2")
    process: Any = SimpleNamespace(bus=bus, settings=SimpleNamespace(pool=POOL), log=SilentLog())
    for kept_s, num_left in ((None, 2), (7 * DAY_S, 1)):
        host: Any = SimpleNamespace(folded=pool(1, artifacts_kept_s=kept_s, code_kept_s=None).state)
        await OldObjects(process, host).sweep()
        assert len(bus.broker.objects[bucket]) == num_left
    assert YOUNG in next(iter(bus.broker.objects[bucket]))
