"""On which subjects a sender may ask for an answer."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from elasticflow.shared.messages import subjects
from elasticflow.shared.messages.limits import TOKEN_PATTERN, Token
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.state.job import identity_of
from elasticflow.shared.state.load import Load, LoadPhase, load_id_on_bus

POOL = "pool-a"


@given(load_id=st.from_regex(TOKEN_PATTERN, fullmatch=True))
def test_no_id_of_a_load_is_the_name_of_another_one_on_the_bus(load_id: str) -> None:
    identity = identity_of("lab", load_id, 7, 1.5)
    load = Load(
        load_id=load_id,
        identity=identity,
        tenant="lab",
        spec=LoadSpec(task_function="jobs.fold:fold", task_s=1.0),
        phase=LoadPhase.OPEN,
        useful_share=None,
        opened_at_s=1.5,
        by_identity=True,
    )
    assert load_id_on_bus(load.bus_name) == load_id != load.bus_name
    assert subjects.tasks_of_results(subjects.results(POOL, load.bus_name, 3, 8)) == (load.bus_name, 3, 8)
    with pytest.raises(ValidationError):
        TypeAdapter(Token).validate_python(load.bus_name)


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
