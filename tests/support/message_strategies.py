"""Legal messages of every type, built from the types themselves: a new field or type is covered at once."""

import re
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from functools import cache
from itertools import chain
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le, Len, Lt
from hypothesis import strategies as st
from pydantic import StringConstraints

from elasticflow.shared.messages import commands, events
from elasticflow.shared.messages.codec import MESSAGE_TYPES
from elasticflow.shared.messages.events import PlanDecided
from elasticflow.shared.messages.gpus import ShareSchedule
from elasticflow.shared.messages.job_environment import OwnEnvironment, SealedSecret
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.messages.limits import TimeS, VariableValue

INT64 = {"min_value": -(1 << 63), "max_value": (1 << 63) - 1}
MAX_ITEMS = 3
CHARACTERS = st.characters(codec="utf-8")


def messages() -> st.SearchStrategy[Any]:
    """Any message that the codec knows."""
    return st.sampled_from(sorted(MESSAGE_TYPES)).flatmap(lambda name: messages_of(MESSAGE_TYPES[name]))


def messages_of(message_type: type[Any], **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Messages of one type; for some fields the strategy may be given."""
    if message_type is PlanDecided:
        return decisions(one_of_types(events.PlanEvent))
    return _built(message_type, **given)


def one_of_types(union: Any) -> st.SearchStrategy[Any]:
    return st.one_of([_of(member) for member in get_args(union)])


def decisions(plan_events: st.SearchStrategy[Any]) -> st.SearchStrategy[PlanDecided]:
    hints = get_type_hints(PlanDecided, include_extras=True)
    return st.builds(
        PlanDecided,
        service=st.sampled_from(("admission", "allocator", "placement")),
        based_on=_of(hints["based_on"]),
        now_s=_of(hints["now_s"]),
        commands=_tuples(one_of_types(commands.Command)),
        events=_tuples(plan_events),
    )


def _of(hint: Any, *bounds: Any) -> st.SearchStrategy[Any]:
    """Values of a type, within the bounds that its annotation names."""
    origin, args = get_origin(hint), get_args(hint)
    if hint == ShareSchedule:
        return st.lists(st.tuples(*[_of(TimeS)] * 3), max_size=MAX_ITEMS).map(lambda s: tuple(chain(*s)))
    if origin is Annotated:
        return _of(args[0], *args[1:], *bounds)
    if origin in (Union, types.UnionType):
        return st.one_of([_of(arg, *bounds) for arg in args])
    if origin is Literal:
        return st.sampled_from(args)
    if origin is tuple and args[1:] == (...,):
        return _tuples(_of(args[0]))
    if origin is tuple:
        return st.tuples(*map(_of, args))
    if origin is Mapping:
        return st.dictionaries(_of(args[0]), _of(args[1]), max_size=MAX_ITEMS)
    if hint is type(None):
        return st.none()
    if is_dataclass(hint) or hasattr(hint, "_fields"):
        return _built(hint)
    return _scalar(hint, bounds)


def _with_uneven_counts(placed: events.PlacedJob) -> events.PlacedJob:
    """The last half of its GPUs are of another type."""
    num_gpus = len(placed.gpus)
    return replace(placed, virtual_nodes_by_rank=tuple(range(num_gpus, 0, -1)), num_added_gpus=num_gpus // 2)


def _with_other_choices(spec: JobSpec) -> JobSpec:
    """Of those that exclude each other. Its environment has the requirements that were the job's."""
    own = OwnEnvironment(python="3.12", requirements=spec.requirements, constraints=spec.requirements[:1])
    other_types = {"gpu_type": spec.gpu_type or "V100", "other_gpu_types": ("P100", "cpu-0.25")}
    return replace(spec, **other_types, requirements=(), own_environment=own)


@cache  # a strategy that is built once is checked once
def _built(composite: Any, **given: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(composite, include_extras=True)
    names = [f.name for f in fields(composite)] if is_dataclass(composite) else composite._fields
    if composite is events.PlacedJob:
        given |= {"virtual_nodes_by_rank": st.just(()), "num_added_gpus": st.just(0)}
    if composite is JobSpec:
        variable_names = st.from_regex(r"\AMY_[A-Z]{1,8}\Z")  # not kept by the pool
        variables = st.dictionaries(variable_names, _of(VariableValue), max_size=MAX_ITEMS)
        secrets = _tuples(st.builds(SealedSecret, name=variable_names, sealed=st.just("c2VhbGVk")))
        given |= {"other_gpu_types": st.just(()), "environment": variables, "secrets": secrets}
        data = st.dictionaries(variable_names, st.from_regex(r"\As3://[a-z/]{1,20}\Z"), max_size=MAX_ITEMS)
        given |= {"data": data, "own_environment": st.none(), "gpus_per_replica": st.sampled_from((1, 2, 64))}
    built = st.builds(composite, **{name: given[name] if name in given else _of(hints[name]) for name in names})
    variants = {events.PlacedJob: _with_uneven_counts, JobSpec: _with_other_choices}
    return st.one_of(built, built.map(variants[composite])) if composite in variants else built


def _scalar(hint: Any, bounds: tuple[Any, ...]) -> st.SearchStrategy[Any]:
    if hint is bool:
        return st.booleans()
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    if hint is str:
        return _text(bounds)
    low, high, open_low, open_high = None, None, False, False
    for bound in bounds:
        match bound:
            case Ge(limit):
                low = limit
            case Gt(limit):
                low, open_low = limit, True
            case Le(limit):
                high = limit
            case Lt(limit):
                high, open_high = limit, True
    if hint is int:
        low = INT64["min_value"] if low is None else low + open_low
        high = INT64["max_value"] if high is None else high - open_high
        return st.integers(low, high)
    assert hint is float, hint
    return st.floats(low, high, exclude_min=open_low, exclude_max=open_high, allow_nan=False, allow_infinity=False)


def _text(bounds: tuple[Any, ...]) -> st.SearchStrategy[str]:
    limits = {"min_size": 0, "max_size": 40}
    for bound in bounds:
        match bound:
            case StringConstraints(pattern=str(pattern), min_length=min_length, max_length=max_length):
                return _matching(pattern, min_length or 0, max_length or 64)
            case StringConstraints(min_length=min_length):
                limits["min_size"] = min_length or 0
            case Len(min_length):
                limits["min_size"] = min_length
    return st.text(CHARACTERS, **limits)


@cache
def _matching(pattern: str, min_length: int, max_length: int) -> st.SearchStrategy[str]:
    legal = re.compile(pattern.replace("$", r"\Z"), re.ASCII)  # beyond ASCII, engines disagree on \w
    strings = st.from_regex(legal, alphabet=CHARACTERS)
    return strings.filter(lambda text: min_length <= len(text) <= max_length)


def _tuples(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    return st.lists(items, max_size=MAX_ITEMS).map(tuple)
