"""Verdicts follow from claims and measurements alone."""

from dataclasses import replace

import pytest

from benchmarks.papers.claims import Average, Better, Claim, Contestant, Form, ReadFrom, Setup
from benchmarks.papers.measurements import measured
from benchmarks.papers.runs import Run, for_bound, for_ours, runs_of
from benchmarks.papers.verdicts import Beside, Measurement, Verdict, verdict

CLAIM = Claim(
    figure="EF-F1",
    name="elasticflow",
    paper="ElasticFlow",
    section="1",
    title="A figure",
    read_from=ReadFrom.TEXT,
    quantity="deadline_satisfactory_ratio",
    unit="ratio",
    better=Better.HIGHER,
    value=0.8,
    published="",
    tolerance=0.05,
    relative_tolerance=None,
    setup=Setup(traces=("a",), num_gpus_by_trace=(8,)),
    contestant=Contestant(policy="elasticflow-algorithms"),
    also=(),
    own=True,
    form=Form.VALUE,
    against=None,
    needs=(),
    stands_in="",
)
BASELINE = replace(CLAIM, name="edf", own=False, value=0.2)


def found(value: float, *beside: Beside) -> Measurement:
    return Measurement(value=value, least=value, most=value, beside=beside)


def test_a_number_within_the_tolerance_is_reproduced() -> None:
    assert verdict(CLAIM, found(0.76)) is Verdict.REPRODUCED
    assert verdict(CLAIM, found(0.84)) is Verdict.REPRODUCED
    part = replace(CLAIM, tolerance=None, relative_tolerance=0.1)
    assert verdict(part, found(0.73)) is Verdict.REPRODUCED
    assert verdict(part, found(0.71)) is Verdict.DIFFERS


def test_another_published_value_changes_the_verdict() -> None:
    measurement = found(0.8)
    assert verdict(CLAIM, measurement) is Verdict.REPRODUCED
    assert verdict(replace(CLAIM, value=0.9), measurement) is Verdict.DIFFERS
    assert verdict(replace(CLAIM, value=0.7), measurement) is Verdict.BETTER
    assert verdict(replace(CLAIM, value=None), measurement) is Verdict.NO_VALUE
    assert verdict(replace(CLAIM, value=None), None) is Verdict.NOT_RUN


def test_only_the_papers_own_system_can_be_better() -> None:
    assert verdict(CLAIM, found(0.9)) is Verdict.BETTER
    assert verdict(BASELINE, found(0.9)) is Verdict.DIFFERS
    assert verdict(replace(CLAIM, better=Better.LOWER), found(0.9)) is Verdict.DIFFERS
    assert verdict(replace(CLAIM, better=Better.LOWER), found(0.7)) is Verdict.BETTER
    assert verdict(replace(CLAIM, better=Better.NEITHER), found(0.9)) is Verdict.DIFFERS


def test_the_order_holds_if_all_other_claims_are_on_the_same_side() -> None:
    above, below = Beside(published=0.8, measured=0.95), Beside(published=0.8, measured=0.3)
    assert verdict(BASELINE, found(0.4, above)) is Verdict.HOLDS
    assert verdict(BASELINE, found(0.4, above, below)) is Verdict.DIFFERS
    equal = Beside(published=0.22, measured=0.1)  # published as good as equal: no order to hold
    assert verdict(BASELINE, found(0.4, above, equal)) is Verdict.HOLDS


def test_without_a_claim_of_another_published_value_there_is_no_order_to_hold() -> None:
    equal = Beside(published=BASELINE.value or 0.0, measured=0.9)
    assert verdict(BASELINE, found(0.4, equal)) is Verdict.DIFFERS


def test_a_quotient_or_a_reduction_by_less_than_a_hundredth_has_no_direction() -> None:
    times = replace(CLAIM, form=Form.QUOTIENT, value=1.3, against=Contestant(policy="edf"))
    assert verdict(times, found(1.02)) is Verdict.HOLDS
    assert verdict(times, found(1.0004)) is Verdict.DIFFERS
    assert verdict(replace(times, form=Form.REDUCTION, value=0.3), found(0.009)) is Verdict.DIFFERS


def test_a_quotient_holds_on_its_side_of_one_and_a_reduction_by_its_sign() -> None:
    times = replace(CLAIM, form=Form.QUOTIENT, value=2.0, against=Contestant(policy="edf"))
    assert verdict(times, found(1.2)) is Verdict.HOLDS
    assert verdict(times, found(0.9)) is Verdict.DIFFERS
    saved = replace(times, form=Form.REDUCTION, value=-0.08)
    assert verdict(saved, found(-0.2)) is Verdict.HOLDS
    assert verdict(replace(saved, value=0.3), found(-0.2)) is Verdict.DIFFERS


def test_a_stand_in_can_at_most_hold() -> None:
    times = replace(CLAIM, form=Form.QUOTIENT, value=2.0, stands_in="another trace", against=Contestant(policy="edf"))
    assert verdict(times, found(2.0)) is Verdict.HOLDS
    assert verdict(times, found(9.0)) is Verdict.HOLDS
    assert verdict(times, None) is Verdict.NOT_RUN


def test_a_quotient_of_several_traces_is_averaged_as_the_claim_says() -> None:
    setup = Setup(traces=("a", "b"), num_gpus_by_trace=(8, 16))
    times = replace(CLAIM, form=Form.QUOTIENT, against=Contestant(policy="edf"), setup=setup)
    ratios = {
        ("a", "elasticflow-algorithms"): 0.8,
        ("a", "edf"): 0.1,
        ("b", "elasticflow-algorithms"): 0.6,
        ("b", "edf"): 0.3,
    }

    def numbers_of(run: Run) -> dict[str, float | None]:
        assert run.contestant is not None
        return {"deadline_satisfactory_ratio": ratios[run.jobs.trace, run.contestant.policy]}

    def value(average: str) -> float:
        found = measured(replace(times, setup=replace(setup, average=Average(average))), numbers_of)
        assert found is not None
        return found.value

    assert value("mean of ratios") == pytest.approx(5.0)
    assert value("ratio of means") == pytest.approx(3.5)
    ratios["b", "edf"] = 0.0
    assert measured(times, numbers_of) is None


def test_our_policy_and_the_bound_take_the_place_of_the_papers_algorithm() -> None:
    ours, bound = for_ours(CLAIM), for_bound(CLAIM)
    assert ours is not None
    assert bound is not None
    ids = [run.run_id for claim in (CLAIM, ours, bound) for run, _ in runs_of(claim)]
    assert ids == [f"a-8gpus-{name}-reference" for name in ("elasticflow-algorithms", "selective", "bound")]
    assert for_ours(replace(BASELINE, contestant=Contestant(policy="edf"))) is None
    assert runs_of(replace(CLAIM, needs=("GPUs",))) == ()
