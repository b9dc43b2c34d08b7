"""The worker processes of this node: carries out the policy's actions, reports what workers send and how they end."""

import asyncio
import contextlib
import hmac
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from elasticflow.services.executor.decisions.local_events_and_actions import (
    KillWorker,
    LocalEvent,
    SendToWorker,
    ShutDown,
    StartWorker,
    WorkerAction,
    WorkerEnded,
    WorkerId,
    WorkerReported,
)
from elasticflow.services.executor.processes.checkpoint_copies import (
    CheckpointCopies,
    has_copies,
    reads_first,
    wanted_copies,
)
from elasticflow.services.executor.processes.code_archive import CodeArchive, CodeUnusable
from elasticflow.services.executor.processes.fork_server_client import Exited, ForkedProcess
from elasticflow.services.executor.processes.job_environments import JobEnvironments
from elasticflow.services.executor.processes.job_logs import last_lines
from elasticflow.services.executor.processes.launcher import OnEvent, WorkerEvent, WorkerHandle
from elasticflow.services.executor.processes.prepared_folders import (
    CannotPrepare,
    FetchedData,
    InstalledPackages,
    PreparedFolders,
    bring_promised_checkpoints,
    take_folders,
)
from elasticflow.shared.errors import BadSettings, ElasticFlowError
from elasticflow.shared.messages.events.nodes import KnownStarts
from elasticflow.shared.messages.job_environment import without_secrets
from elasticflow.shared.messages.job_spec import ContinuedJob
from elasticflow.shared.messages.worker_protocol.from_worker import (
    PHASE_S,
    Alive,
    CheckpointFailed,
    CheckpointWritten,
    ExitCode,
    Failed,
    Finished,
    Switched,
)
from elasticflow.shared.messages.worker_protocol.to_worker import (
    Assignment,
    GenerationPlan,
    LeaseExtended,
    PrepareSwitch,
    StopAtBoundary,
    ToWorker,
)
from elasticflow.shared.runtime.process.files import private_bytes
from elasticflow.shared.runtime.process.secret_sealing import VARIABLE, SecretKeys, SecretsUnusable

# --- The secrets of generations, which their workers prove to each other -------------------------------
# Each executor derives them from a secret of the pool, so they are in no message of the ledger.

_LEAST_BYTES = 16
_RANDOM = re.compile(rb"[0-9a-f]{64}")  # as `eflow keys` makes it: its digest does not reveal it
_DIGEST_LENGTH = 16


@dataclass(frozen=True, slots=True)
class GenerationSecrets:
    """pool_secret: known to executors only; empty: workers prove nothing."""

    pool_secret: bytes = field(default=b"", repr=False)

    @classmethod
    def read(cls, file: Path | None) -> "GenerationSecrets":
        """Read the secret of the pool. file: None if there is none. Raises BadSettings."""
        if file is None:
            return cls()
        secret = private_bytes(VARIABLE, file).strip()
        if len(secret) < _LEAST_BYTES:
            advice = f"`(umask 077; openssl rand -hex 32 > {file})` makes a secret"
            raise BadSettings((f"{VARIABLE}={file}: shorter than {_LEAST_BYTES} bytes; {advice}",))
        return cls(secret)

    def digest(self, pool: str) -> str:
        """The digest for `NodeJoined`: "none" without a secret, "" of one that may be guessed."""
        if not self.pool_secret:
            return "none"
        if not _RANDOM.fullmatch(self.pool_secret):
            return ""
        return hmac.digest(self.pool_secret, f"digest/{pool}".encode(), "sha256").hex()[:_DIGEST_LENGTH]

    def of(self, job_id: str, generation: int) -> str:
        """64 hexadecimal digits; "" without a secret of the pool."""
        message = f"rendezvous/{job_id}/{generation}".encode()
        return hmac.digest(self.pool_secret, message, "sha256").hex() if self.pool_secret else ""


# --- manager -------------------------------------------------------------------------------------------

_NO_CRASH = (ExitCode.DONE, ExitCode.SUPERSEDED, ExitCode.PEER_LOST)  # of this worker


class Launching(Protocol):
    """What starts processes; in production `launcher.Launcher`."""

    async def start(self) -> None: ...
    async def launch(self, assignment: Assignment) -> WorkerHandle: ...
    async def fork(self, slots: Sequence[int] = ()) -> ForkedProcess: ...
    async def close(self) -> None: ...


@dataclass(slots=True)
class _WorkerSlot:
    """A worker from the order to start it to its end. tenant: of its job.

    unsent: messages for it until it has a channel. switches: generation and rank of each switch that it was sent.
    newest_written: of its checkpoints that wait for a copy. delivered: ends with its newest report that waits for one.
    """

    tenant: str = ""
    handle: WorkerHandle | None = None
    is_launching: bool = False
    is_killed: bool = False
    unsent: list[ToWorker] = field(default_factory=list)
    switches: set[tuple[int, int]] = field(default_factory=set)
    starting: asyncio.Task[None] | None = None
    newest_written: CheckpointWritten | None = None
    delivered: asyncio.Task[None] | None = None


class WorkerManager:
    """data_dir: of packages, environments and data of jobs. gpu_left: returns once nothing else uses a GPU's memory.
    announced: returns once the pool knows which starts this node has begun.
    note: receives local events. shut_down: called when nothing is left to do. copies: of checkpoints, where nodes
    share no storage."""

    def __init__(
        self,
        code: CodeArchive,
        *,
        data_dir: Path,
        secret_keys: SecretKeys,
        gpu_left: Callable[[int], Awaitable[None]],
        announced: Callable[[], Awaitable[None]],
        make_launcher: Callable[[OnEvent], Launching],
        note: Callable[[LocalEvent], None],
        shut_down: Callable[[ShutDown], None],
        log: Any,
        generation_secrets: GenerationSecrets,
        copies: CheckpointCopies | None = None,
    ) -> None:
        self._copies = copies
        self._generation_secrets, self._secret_keys = generation_secrets, secret_keys
        self._code, self._gpu_left, self._announced = code, gpu_left, announced
        self._launcher = make_launcher(self._on_event)
        self._folders = PreparedFolders(self.fork, log)
        self._data_dir = data_dir.resolve()
        self._environments = JobEnvironments(data_dir, self._folders)
        self._packages, self._data = InstalledPackages(data_dir, self._folders), FetchedData(data_dir, self._folders)
        self._note, self._shut_down, self._log = note, shut_down, log
        self._slots: dict[WorkerId, _WorkerSlot] = {}
        self._preparing: list[str] = []  # the job of each worker that waits for it
        self._launched: set[tuple[str, int]] = set()  # starts of which a worker has run, or does so soon
        self._lease_until_s = 0.0  # 0: there was no contact yet, so there is no worker
        self._tasks = asyncio.TaskGroup()

    async def open(self) -> None:
        """Return once no worker of an earlier incarnation is left, and new ones can be started."""
        await self._launcher.start()

    async def run(self) -> None:
        """Start workers as `act` orders, until cancelled."""
        async with self._tasks:
            try:
                await asyncio.Event().wait()
            finally:
                self._copies = None  # no task can begin any more: what workers still send waits for no copy

    async def fork(self, slots: Sequence[int] = ()) -> ForkedProcess:
        """A process that is no worker. Raises LaunchFailed."""
        return await self._launcher.fork(slots)

    async def close(self) -> None:
        """Kill all workers; return when they are gone."""
        self.kill_all()
        await self._folders.close()
        await self._launcher.close()

    def act(self, action: WorkerAction) -> None:
        """Carry out one action of the policy; does not block."""
        match action:
            case StartWorker():
                slot = self._slots[action.worker] = _WorkerSlot(tenant=action.tenant)
                slot.starting = self._tasks.create_task(self._start(action, slot))
            case SendToWorker():
                self._log.info("SendToWorker", **action.worker._asdict(), message=str(action.message))
                self._send(action.worker, action.message)
            case KillWorker():
                self._log.info("KillWorker", **action.worker._asdict())
                self._kill(action.worker)
            case ShutDown():
                self._shut_down(action)

    @property
    def preparing(self) -> tuple[str, ...]:
        """The jobs whose workers wait for packages, an environment or data."""
        return tuple(sorted(set(self._preparing)))

    def preparations(self, starts: KnownStarts) -> KnownStarts:
        """Those of these starts, which are all that matter, of which no worker has run."""
        self._launched.intersection_update(starts)
        return tuple(start for start in starts if start not in self._launched)

    @property
    def tenants(self) -> frozenset[str]:
        """Those whose workers start or run here."""
        return frozenset(slot.tenant for slot in self._slots.values())

    def workers_of(self, tenant: str, job_id: str) -> tuple[WorkerHandle, ...]:
        """The workers of this job that have a process, by generation and rank; () if it is of another tenant."""
        slots = sorted(self._slots.items())
        return tuple(
            slot.handle
            for worker, slot in slots
            if worker.job_id == job_id and slot.tenant == tenant and slot.handle is not None and not slot.is_killed
        )

    def starts_worker_of(self, tenant: str, job_id: str) -> bool:
        """Whether a worker of this job starts here, and has no process so far."""
        return any(
            worker.job_id == job_id and slot.tenant == tenant and slot.handle is None
            for worker, slot in self._slots.items()
        )

    def kill_all(self) -> None:
        for worker in tuple(self._slots):
            self._kill(worker)

    def extend_leases(self, until_s: float) -> None:
        """Let all workers train until then (boot clock), and those that start in the meantime."""
        self._lease_until_s = until_s
        for slot in self._slots.values():
            if slot.handle is not None:
                slot.handle.send(LeaseExtended(until_s=until_s))

    def _send(self, worker: WorkerId, message: ToWorker) -> None:
        slot = self._slots.get(worker)
        if slot is None:
            return  # an earlier action of the same decision killed it before it had a process
        if isinstance(message, PrepareSwitch):
            slot.switches.add((message.plan.generation, message.rendezvous_rank))
            message = replace(message, plan=self._with_secret(worker.job_id, message.plan))
        if slot.handle is not None:
            slot.handle.send(message)
        elif isinstance(message, StopAtBoundary):
            self._kill(worker)  # no process of it has done anything yet
        else:
            slot.unsent.append(message)

    def _kill(self, worker: WorkerId) -> None:
        slot = self._slots.get(worker)
        if slot is None or slot.is_killed:
            return
        slot.is_killed = True
        if slot.handle is not None:
            slot.handle.kill()
        elif not slot.is_launching and slot.starting is not None:
            # it waits for code, packages or data; there is no process yet
            slot.starting.cancel()
            self._ended(WorkerEnded(worker=worker, exit_code=ExitCode.DONE))

    # -- starting ----------------------------------------------------------------------------------------

    async def _start(self, action: StartWorker, slot: _WorkerSlot) -> None:
        worker, assignment, tenant = action.worker, action.assignment, action.tenant
        spec, within_s = assignment.spec, assignment.timeouts.preparation_s
        secrets: dict[str, str] = {}
        try:
            await self._announced()  # what is done for the job from here on may end this executor
            secrets = self._secret_keys.open(tenant, spec.secrets)
            code_path = await self._code.folder(tenant, spec.code_digest)
            own = spec.own_environment
            with self._prepares(worker, "making its environment" if own else "fetching its packages and data"):
                environment_path, packages_path, data_paths = await asyncio.gather(
                    self._environments.folder(tenant, own, within_s=within_s),
                    self._packages.folder(tenant, spec.requirements, within_s=within_s),
                    self._data.paths(tenant, spec.data, {**spec.environment, **secrets}, within_s=within_s),
                )
            await self._gpu_left(assignment.gpu_index)
            owner = assignment.job_identity
            for moved in await asyncio.to_thread(take_folders, self._data_dir, worker.job_id, owner):
                self._log.warning("FolderOfAnotherJobMoved", job_id=worker.job_id, folder=str(moved))
            await self._bring_checkpoints(worker, assignment, tenant)
            self._launched.add(worker[:2])
            await self._announced()  # from here on its code may end the machine
            slot.is_launching = True  # from here on a process may exist: it is killed once it is known
            assignment = replace(
                assignment,
                code_path=code_path,
                packages_path=packages_path,
                environment_path=environment_path,
                data_paths=data_paths,
                secrets=secrets,
                plan=self._with_secret(worker.job_id, assignment.plan),
                lease_until_s=self._lease_until_s,
            )
            handle = await self._launcher.launch(assignment)
        except (CodeUnusable, CannotPrepare, SecretsUnusable) as error:
            self._failed(worker, without_secrets(str(error), secrets.values()))
        except (ElasticFlowError, OSError) as error:  # no process, no disk: another attempt may succeed
            self._ended(WorkerEnded(worker=worker, explanation=str(error)))
        except Exception as error:  # ends this job, and not the executor with all its workers
            self._log.exception("WorkerNotStarted", **worker._asdict())
            self._failed(worker, f"its worker could not be started: {type(error).__name__}: {error}")
        else:
            self._log.info("StartWorker", **worker._asdict(), pid=handle.pid, purpose=assignment.purpose)
            slot.handle = handle
            handle.send(LeaseExtended(until_s=self._lease_until_s))  # it may be longer by now
            for message in slot.unsent:
                handle.send(message)
            if slot.is_killed:
                handle.kill()

    async def _bring_checkpoints(self, worker: WorkerId, assignment: Assignment, tenant: str) -> None:
        """Raises CopiesUnreachable, and as `bring_promised_checkpoints`."""
        continued, known = _still_continued(assignment), assignment.checkpoint_iteration
        within_s = assignment.timeouts.preparation_s
        if self._copies is not None and (wanted := wanted_copies(assignment, continued)):
            with self._prepares(worker, "waiting for a copy of a checkpoint"):
                await self._copies.bring(tenant, assignment, wanted, within_s=within_s)
        if continued is not None:
            with self._prepares(worker, "waiting for a checkpoint"):
                wait_s = assignment.checkpoint_wait_s
                await bring_promised_checkpoints(self._data_dir, worker.job_id, continued, wait_s=wait_s)
            known = max(known, continued.iteration)
        if self._copies is not None and reads_first(assignment):
            with self._prepares(worker, "copying its newest checkpoint"):
                await self._copies.store_newer(tenant, assignment, known, within_s=within_s)

    @contextlib.contextmanager
    def _prepares(self, worker: WorkerId, phase: str) -> Iterator[None]:
        """Heartbeats say so within the block: a job that takes long to start is not stalled. phase: as in `Alive`."""
        lasts = WorkerReported(worker=worker, message=Alive(iteration=0, seconds_since_progress=PHASE_S, phase=phase))
        told = asyncio.get_running_loop().call_later(PHASE_S, self._note, lasts)
        self._preparing.append(worker.job_id)
        try:
            yield
        finally:
            told.cancel()
            self._preparing.remove(worker.job_id)

    def _failed(self, worker: WorkerId, error: str) -> None:
        """Report for a worker that has no process."""
        self._note(WorkerReported(worker=worker, message=Failed(error=error)))
        self._ended(WorkerEnded(worker=worker, exit_code=ExitCode.FAILED))

    def _with_secret(self, job_id: str, plan: GenerationPlan) -> GenerationPlan:
        return replace(plan, secret=self._generation_secrets.of(job_id, plan.generation))

    # -- what workers send -------------------------------------------------------------------------------

    def _on_event(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        slot, waits = self._slots.get(_worker_of(handle)), isinstance(event, CheckpointWritten | Finished | Exited)
        if self._copies is None or slot is None or not waits or not has_copies(handle.assignment):
            self._report(handle, event)
            return
        if isinstance(event, CheckpointWritten):
            slot.newest_written = event
        slot.delivered = self._tasks.create_task(self._deliver(self._copies, handle, slot, event, slot.delivered))

    async def _deliver(
        self,
        copies: CheckpointCopies,
        handle: WorkerHandle,
        slot: _WorkerSlot,
        event: WorkerEvent,
        before: "asyncio.Task[None] | None",
    ) -> None:
        """Report in order, a checkpoint once it has a copy. What follows it waits: the next generation may need it."""
        if before is not None:
            await asyncio.wait({before})
        if isinstance(event, CheckpointWritten):
            if not event.request and event is not slot.newest_written:
                return  # else the end of a worker would wait for a copy of each checkpoint of an outage
            why = await copies.store(slot.tenant, handle.assignment, event.iteration)
            if why:
                self._log.warning("CheckpointNotCopied", **_worker_of(handle)._asdict(), reason=why)
                if not event.request:
                    return
                event = CheckpointFailed(request=event.request, reason=f"it has no copy in the checkpoint store: {why}")
        self._report(handle, event)

    def _report(self, handle: WorkerHandle, event: WorkerEvent) -> None:
        worker = _worker_of(handle)
        if isinstance(event, Switched) and not self._was_sent(worker, event):
            slot = self._slots.get(worker)
            if slot is None or not slot.is_killed:  # it may have sent a thousand of them before it ends
                self._log.error("WorkerKilled", **worker._asdict(), reason="it reports a switch that it was not sent")
            self._kill(worker)
            handle.kill()
        elif isinstance(event, Exited):
            self._log.info("WorkerEnded", **worker._asdict(), exit_code=event.code, signal=event.signal)
            lines = "" if event.code in _NO_CRASH else _last_lines(handle)
            self._ended(WorkerEnded(worker=worker, exit_code=event.code, signal=event.signal, last_lines=lines))
        else:
            lines = _last_lines(handle) if isinstance(event, Failed) else ""
            self._note(WorkerReported(worker=worker, message=event, last_lines=lines))
            if isinstance(event, Switched):
                self._switched(worker, handle, event)

    def _was_sent(self, worker: WorkerId, switched: Switched) -> bool:
        slot = self._slots.get(worker)
        return slot is not None and (switched.generation, switched.rank) in slot.switches

    def _switched(self, worker: WorkerId, handle: WorkerHandle, switched: Switched) -> None:
        """The process is another worker from now on."""
        handle.assignment = replace(
            handle.assignment, plan=replace(handle.assignment.plan, generation=switched.generation), rank=switched.rank
        )
        target = WorkerId(worker.job_id, switched.generation, switched.rank)
        self._slots[target] = self._slots.pop(worker)
        self._log.info("WorkerSwitched", **target._asdict(), previous=worker.generation, pid=handle.pid)

    def _ended(self, event: WorkerEnded) -> None:
        with contextlib.suppress(KeyError):  # it was killed while its process started, and has been reported
            del self._slots[event.worker]
            self._note(event)


def _worker_of(handle: WorkerHandle) -> WorkerId:
    assignment = handle.assignment
    return WorkerId(assignment.job_id, assignment.plan.generation, assignment.rank)


def _still_continued(assignment: Assignment) -> ContinuedJob | None:
    """The job from whose checkpoint this generation may have to begin; None once the ledger knows a newer one."""
    continued, known = assignment.spec.continues, assignment.checkpoint_iteration
    if continued is None or assignment.purpose != "train" or known > continued.iteration:
        return None
    # after the loss of a damaged one, an older one was taken, which the ledger has recorded
    return replace(continued, iteration=known) if known else continued


def _last_lines(handle: WorkerHandle) -> str:
    """The last lines of the worker's log, without values of the job's secrets.

    Blocks for one read of a file that this machine has just written.
    """
    return last_lines(handle.log_file, handle.assignment.secrets.values())
