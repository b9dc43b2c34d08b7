"""Which function answers which command."""

from typing import assert_never

from elasticflow.services.admission.commands.amend import amend
from elasticflow.services.admission.commands.cancel_and_checkpoint import cancel, checkpoint
from elasticflow.services.admission.commands.gpu_limits import set_gpu_limits
from elasticflow.services.admission.commands.loads import cancel_load, open_load, seal_load
from elasticflow.services.admission.commands.quote_and_reserve import reserve
from elasticflow.services.admission.commands.submit import submit
from elasticflow.services.admission.session import AdmissionSession
from elasticflow.shared.messages.commands import (
    AmendJob,
    CancelJob,
    CancelLoad,
    Command,
    OpenLoad,
    ProfileJob,
    RequestCheckpoint,
    ReserveQuote,
    SealLoad,
    SetGpuLimits,
    SubmitJob,
)


def answered(session: AdmissionSession, command: Command) -> AdmissionSession:
    """The session after one command."""
    match command:
        case SubmitJob() | ProfileJob():
            return submit(session, command)
        case CancelJob():
            return cancel(session, command)
        case ReserveQuote():
            return reserve(session, command)
        case AmendJob():
            return amend(session, command)
        case SetGpuLimits():
            return set_gpu_limits(session, command)
        case RequestCheckpoint():
            return checkpoint(session, command)
        case OpenLoad():
            return open_load(session, command)
        case SealLoad():
            return seal_load(session, command)
        case CancelLoad():
            return cancel_load(session, command)
        case _:
            assert_never(command)
