"""Which function answers which command, and in the session of which GPU type."""

from typing import assert_never

from elasticflow.services.admission.commands.amend_on_types import amend_on_types
from elasticflow.services.admission.commands.cancel_and_checkpoint import cancel, checkpoint
from elasticflow.services.admission.commands.gpu_limits import set_gpu_limits
from elasticflow.services.admission.commands.loads import cancel_load, open_load, seal_load
from elasticflow.services.admission.commands.reserve import reserve
from elasticflow.services.admission.commands.submit import submit
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.services.admission.sessions_by_type import SessionsByType
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    CancelLoad,
    Command,
    LoadCommand,
    OpenLoad,
    ProfileJob,
    RequestCheckpoint,
    ReserveQuote,
    SealLoad,
    SetGpuLimits,
    SubmitJob,
)


def answered(sessions: SessionsByType, command: Command) -> SessionsByType:
    """The sessions after one command."""
    match command:
        case SubmitJob() | ProfileJob():
            return submit(sessions, command)
        case ReserveQuote():
            return reserve(sessions, command)
        case OpenLoad() | SealLoad() | CancelLoad():
            return sessions.after_whole(_of_load(sessions.whole, command))
        case AmendJob():
            return amend_on_types(sessions, command)
        case CancelJob() | SetGpuLimits() | RequestCheckpoint():
            return sessions.on_job(command.job_id, lambda session: _of_job(session, command))
        case _:
            assert_never(command)


def _of_load(whole: AdmissionSession, command: LoadCommand) -> AdmissionSession:
    match command:
        case OpenLoad():
            return open_load(whole, command)
        case SealLoad():
            return seal_load(whole, command)
        case CancelLoad():
            return cancel_load(whole, command)


def _of_job(session: AdmissionSession, command: CancelJob | SetGpuLimits | RequestCheckpoint) -> AdmissionSession:
    match command:
        case CancelJob():
            return cancel(session, command)
        case SetGpuLimits():
            return set_gpu_limits(session, command)
        case RequestCheckpoint():
            return checkpoint(session, command)
