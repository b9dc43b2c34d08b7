"""Given these events of padding loads, then this is known of them."""

from dataclasses import replace

import pytest

from elasticflow.shared.messages import events
from elasticflow.shared.messages.load_spec import LoadSpec
from elasticflow.shared.state.fold import loads as fold
from elasticflow.shared.state.load import Load, LoadPhase
from testbed.histories import NOW_S, History, pool

SPEC = LoadSpec(task_function="jobs.fold:fold", task_s=1.0)


def opened(load_id: str = "a", at_s: float = NOW_S) -> events.LoadOpened:
    return events.LoadOpened(load_id=load_id, tenant="lab", spec=SPEC, useful_share=0.9, at_s=at_s)


def sealed(num_tasks: int = 10, load_id: str = "a") -> events.LoadSealed:
    return events.LoadSealed(load_id=load_id, num_tasks=num_tasks, at_s=NOW_S + 1.0)


def cancelled(load_id: str = "a", at_s: float = NOW_S + 2.0) -> events.LoadCancelled:
    return events.LoadCancelled(load_id=load_id, reason="enough", at_s=at_s)


def load(history: History, load_id: str = "a") -> Load:
    return history.state.loads[load_id]


def test_a_load_is_opened_sealed_and_cancelled_once() -> None:
    history = pool(4).then(opened())
    assert (load(history).phase, load(history).num_tasks, load(history).live) == (LoadPhase.OPEN, None, True)
    history.then(sealed())
    assert (load(history).phase, load(history).num_tasks) == (LoadPhase.SEALED, 10)
    history.then(sealed(11), replace(opened(), tenant="other"))
    assert (load(history).num_tasks, load(history).tenant) == (10, "lab")
    history.then(cancelled(), cancelled(at_s=NOW_S + 9.0), sealed(12))
    assert (load(history).phase, load(history).ended_at_s) == (LoadPhase.CANCELLED, NOW_S + 2.0)
    assert load(history).explanation == "enough"


def test_a_load_has_one_identity_and_a_later_one_of_its_id_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_ENDED_LOADS", 0)
    history = pool(4).then(opened())
    first = load(history).identity
    assert load(history.then(opened(), sealed())).identity == first
    assert load(pool(4).then(opened(at_s=NOW_S + 1.0))).identity != first, "in a restored ledger"
    history.then(cancelled(), opened())
    assert load(history).identity not in ("", first)


def test_the_ranges_of_two_monitors_are_united_and_what_is_counted_never_falls() -> None:
    first = events.LoadProgressed(load_id="a", num_results=6, counted=((0, 5),), counted_to=40, at_s=NOW_S)
    of_another = events.LoadProgressed(
        load_id="a", num_results=7, counted=((4, 8), (10, 11)), counted_to=30, at_s=NOW_S
    )
    without_ranges = events.LoadProgressed(load_id="a", num_results=9, at_s=NOW_S)
    history = pool(4).then(opened(), first, of_another)
    assert (load(history).counted, load(history).counted_to) == (((0, 8), (10, 11)), 40)
    history.then(without_ranges)
    assert (load(history).num_results, load(history).counted, load(history).counted_to) == (9, ((0, 8), (10, 11)), 40)


def test_events_of_an_unknown_load_change_nothing() -> None:
    assert len(pool(4).then(sealed(), cancelled()).state.loads) == 0


def test_events_of_loads_are_no_scheduling_events() -> None:
    before = pool(4).state
    after = pool(4).then(opened(), sealed(), cancelled()).state
    assert replace(after, sequence=before.sequence, loads=before.loads) == before


def test_of_loads_that_ended_the_newest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "MAX_ENDED_LOADS", 2)
    history = pool(4).then(opened("live"))
    for number, load_id in enumerate(("first", "second", "third")):
        history.then(opened(load_id), cancelled(load_id, at_s=NOW_S + number))
    assert set(history.state.loads) == {"live", "second", "third"}
