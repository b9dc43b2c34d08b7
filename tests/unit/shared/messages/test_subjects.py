"""On which subjects a sender may ask for an answer."""

import pytest

from elasticflow.shared.messages import subjects

POOL = "pool-a"


@pytest.mark.parametrize(
    "subject", ["_INBOX.a", "_INBOX.Ab3.17", "_INBOX.a-b_c.d", subjects.answer("lab", POOL, "job-1")]
)
def test_an_answer_goes_to_an_inbox_or_to_an_answer_subject_of_the_tenant(subject: str) -> None:
    assert subjects.may_be_answered("lab", POOL, subject)


@pytest.mark.parametrize(
    "subject",
    [
        "",
        "anywhere",
        subjects.plan(POOL),
        subjects.job(POOL, "job-1"),
        subjects.submit("lab", POOL),
        subjects.dead_letter(POOL, "admission"),
        subjects.answer("lab", "another", "job-1"),
        subjects.answer("rival", POOL, "job-1"),
        subjects.answer("l.b", POOL, "job-1"),
        f"{subjects.answer('lab', POOL, 'job-1')}.more",
        subjects.answer("lab", POOL, "*"),
        f"ef.answer.{POOL}.job-1",
        "$JS.API.STREAM.DELETE.EF_LEDGER_pool-a",
        "$JS.ACK.EF_SUBMIT_pool-a.admission.1.1.1.1.1",
        "_INBOX",
        "_INBOX.",
        "_INBOX_a.b",
        "_INBOX.>",
        "_INBOX.a.*",
        "_INBOX.a..b",
        "_INBOX.a b",
        "_INBOX.a\r\nPUB ef.ledger.pool-a.plan 0",
        "_INBOX.a\n",
        f"_INBOX.{'a' * 300}",
    ],
)
def test_no_answer_goes_elsewhere(subject: str) -> None:
    assert not subjects.may_be_answered("lab", POOL, subject)
