"""What a reply tells its tenant."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from elasticflow.services.admission.policy import POLICY
from elasticflow.shared.messages.events import JobAdmitted
from elasticflow.shared.runtime.service.ledger_appender import ReplyPublisher
from testbed.histories import NOW_S, History, spec, submit


async def test_a_reply_names_no_job_of_another_tenant() -> None:
    """Although the decision in the ledger has new schedules of both."""
    share = (NOW_S, NOW_S + 10.0, 1)
    admitted = JobAdmitted(
        job_id="late",
        tenant="lab",
        spec=spec(),
        deadline_s=NOW_S + 10.0,
        minimum_satisfactory_share=share,
        gpu_seconds=10.0,
        replanned={"early": share, "of-others": share},
        at_s=NOW_S,
    )
    early = replace(admitted, job_id="early", replanned={})
    of_others = replace(early, job_id="of-others", tenant="club")
    state = History().then(of_others, early, admitted).state
    published: list[bytes] = []

    async def publish(_: str, data: bytes) -> None:
        published.append(data)

    publisher: Any = ReplyPublisher(
        SimpleNamespace(  # pyright: ignore[reportArgumentType]
            bus=SimpleNamespace(publish=publish), pool="p", clock=SimpleNamespace(now_s=lambda: NOW_S)
        ),
        POLICY,
        SimpleNamespace(folded=state),  # pyright: ignore[reportArgumentType]
    )
    command: Any = SimpleNamespace(command=submit("late"), envelope_id="1")
    await publisher.reply((command,), (admitted,))
    (data,) = published
    assert b"of-others" not in data
    assert b"early" in data
