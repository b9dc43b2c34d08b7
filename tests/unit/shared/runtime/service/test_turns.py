"""Tenants have their turns one after another."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticflow.shared.runtime.service.command_queue import Turns


def tenant(item: str) -> str:
    return item[0]


def test_one_item_of_each_tenant_comes_before_the_second_one_of_any() -> None:
    assert Turns().in_turns(["a1", "a2", "a3", "b1", "c1", "c2"], tenant) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_the_tenant_whose_turn_was_longest_ago_is_first_and_a_new_one_before_all() -> None:
    turns = Turns()
    turns.had(["a", "b", "a"])
    assert turns.in_turns(["a1", "a2", "b1", "c1"], tenant) == ["c1", "b1", "a1", "a2"]


def test_a_tenant_with_one_item_at_a_time_does_not_keep_another_waiting() -> None:
    turns, served = Turns(), list[str]()
    flood = [f"a{number}" for number in range(9)]
    for number in range(8):
        (first, *_) = turns.in_turns([*flood, f"b{number}"], tenant)
        served.append(tenant(first))
        turns.had([tenant(first)])
        flood = [item for item in flood if item != first]
    assert served == ["a", "b"] * 4


def test_a_tenant_shares_its_turns_with_those_of_a_while_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticflow.shared.runtime.service.command_queue.REMEMBERED", 2)
    turns = Turns()
    assert not turns.are_shared(["a", "a"])
    assert turns.are_shared(["a", "b"])
    turns.had(["b"])
    turns.had(["a"])
    assert turns.are_shared(["a"])
    turns.had(["a"])
    assert not turns.are_shared(["a"])


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers())), st.lists(st.sampled_from("abcd")))
def test_all_items_are_there_and_those_of_one_tenant_keep_their_order(
    items: list[tuple[str, int]], had: list[str]
) -> None:
    turns = Turns()
    turns.had(had)
    ordered = turns.in_turns(items, lambda item: item[0])
    for name in "abc":
        assert [item for item in ordered if item[0] == name] == [item for item in items if item[0] == name]
    assert len(ordered) == len(items)
