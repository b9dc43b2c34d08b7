"""Tenants have their turns one after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.runtime.service.turns import Turns


def tenant(item: str) -> str:
    return item[0]


def one_second(_: object) -> float:
    return 1.0


def test_one_item_of_each_tenant_comes_before_the_second_one_of_any() -> None:
    assert Turns().in_turns(["a1", "a2", "a3", "b1", "c1", "c2"], tenant, one_second) == [
        "a1",
        "b1",
        "c1",
        "a2",
        "c2",
        "a3",
    ]


def test_the_tenant_whose_turn_was_longest_ago_is_first_and_a_new_one_before_all() -> None:
    turns = Turns()
    turns.had([("a", 1.0), ("b", 1.0), ("a", 1.0)])
    assert turns.in_turns(["a1", "a2", "b1", "c1"], tenant, one_second) == ["c1", "b1", "a1", "a2"]


def test_a_tenant_with_one_item_at_a_time_does_not_keep_another_waiting() -> None:
    turns, served = Turns(), list[str]()
    flood = [f"a{number}" for number in range(9)]
    for number in range(8):
        (first, *_) = turns.in_turns([*flood, f"b{number}"], tenant, one_second)
        served.append(tenant(first))
        turns.had([(tenant(first), 1.0)])
        flood = [item for item in flood if item != first]
    assert served == ["a", "b"] * 4


def test_a_tenant_shares_its_turns_with_those_of_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticflow.shared.runtime.service.turns.REMEMBERED", 2)
    turns = Turns()
    assert not turns.are_shared(["a", "a"])
    assert turns.are_shared(["a", "b"])
    turns.had([("b", 1.0)])
    turns.had([("a", 1.0)])
    assert turns.are_shared(["a"])
    turns.had([("a", 1.0)])
    assert not turns.are_shared(["a"])


def test_turns_are_weighted_by_the_work_of_each_tenant() -> None:
    turns, served = Turns(), list[str]()
    work_s = {"a": 3.0, "b": 1.0}
    for number in range(12):
        items = [f"a{number}", f"b{number}"]
        (first, _) = turns.in_turns(items, tenant, lambda item: work_s[tenant(item)])
        served.append(tenant(first))
        turns.had([(tenant(first), work_s[tenant(first)])])
    assert served == ["a", "b", "b", "b"] * 3


def test_cheap_items_come_before_the_second_expensive_one() -> None:
    ordered = Turns().in_turns(["a1", "a2", "b1", "b2", "b3"], tenant, lambda item: 2.5 if tenant(item) == "a" else 1.0)
    assert ordered == ["a1", "b1", "b2", "b3", "a2"]


def test_a_tenant_that_was_away_is_first_and_at_most_an_item_ahead() -> None:
    turns = Turns()
    turns.had([("b", 1.0)])
    for _ in range(100):
        turns.had([("a", 1.0)])
    ordered = turns.in_turns(
        [*(f"a{number}" for number in range(5)), *(f"b{number}" for number in range(5))], tenant, one_second
    )
    assert "".join(map(tenant, ordered)) == "bbabababaa"


@given(st.lists(st.tuples(st.sampled_from("abc"), st.floats(0.1, 10.0)), min_size=30, max_size=60))
def test_of_tenants_that_always_have_items_none_gets_more_than_an_item_ahead(works: list[tuple[str, float]]) -> None:
    turns, used_s = Turns(), dict.fromkeys("abc", 0.0)
    for number in range(30):
        next_s = {name: [work_s for other, work_s in works if other == name] or [1.0] for name in "abc"}
        items = [(name, next_s[name][number % len(next_s[name])]) for name in "abc"]
        ((name, work_s), *_) = turns.in_turns(items, lambda item: item[0], lambda item: item[1])
        turns.had([(name, work_s)])
        used_s[name] += work_s
        assert max(used_s.values()) - min(used_s.values()) <= 20.0


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())), st.lists(st.sampled_from("abcd")))
def test_all_items_are_there_and_those_of_one_tenant_keep_their_order(
    items: list[tuple[str, int]], had: list[str]
) -> None:
    turns = Turns()
    turns.had((name, 1.0) for name in had)
    ordered = turns.in_turns(items, lambda item: item[0], one_second)
    for name in "abc":
        assert [item for item in ordered if item[0] == name] == [item for item in items if item[0] == name]
    assert len(ordered) == len(items)
