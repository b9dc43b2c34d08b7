"""Tables of options: a dataclass declares each option once, and a command takes all of them as one value.

A field `batch: Annotated[int | None, typer.Option("--batch"), In(("submit", "run"))] = None` is one option. An option
that may be given several times is a tuple. A field whose type is another table stands for the options of that table.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, NamedTuple, get_args

from typer.models import ArgumentInfo, OptionInfo


@dataclass(frozen=True, slots=True)
class In:
    """The commands that have an option, () for all; what its text means, and what sets this in a job.

    help_of: of commands for which the option means something else.
    """

    commands: tuple[str, ...] = ()
    means: Callable[[Any], Any] = lambda value: value
    sets: Callable[[Any, Any], object] = lambda job, value: None
    help_of: Mapping[str, str] = field(default_factory=dict[str, str])


class Row(NamedTuple):
    """One option of a table. word: as it is typed, "" of an argument."""

    name: str
    word: str
    parameter: inspect.Parameter
    default: Any
    use: In

    def words(self, options: Any) -> list[str]:
        """The option with its value, as a command line has it; none if it is not given."""
        value = getattr(options, self.name)
        if value == self.default:
            return []
        if value is True:
            return [self.word]
        return [word for each in (value if isinstance(value, tuple) else (value,)) for word in (self.word, str(each))]


def rows_of(table: Any) -> Iterator[Row]:
    """The options of a table, in the order in which help lists them."""
    for each in fields(table):
        if is_dataclass(each.type):
            yield from rows_of(each.type)
        kind, *details = get_args(each.type) or (each.type,)
        use = next((detail for detail in details if isinstance(detail, In)), In())
        for info in details:
            if isinstance(info, OptionInfo | ArgumentInfo):
                word = str(info.default) if isinstance(info, OptionInfo) else ""  # typer keeps the first name there
                yield Row(each.name, word, _parameter(each.name, kind, info, each.default), each.default, use)


def _parameter(name: str, kind: Any, info: OptionInfo | ArgumentInfo, default: Any) -> inspect.Parameter:
    """The option as a parameter that typer reads. Typer has lists where a table has tuples."""
    if default == ():
        kind, default = list[str] | None, None
    if default is MISSING:
        default = inspect.Parameter.empty
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info])


def takes_tables(command: Callable[..., None]) -> Callable[..., None]:
    """The command as typer reads it: a parameter whose type is a table becomes the options of the table.

    An argument that the command declares itself, before the table, replaces the one of that name in the table.
    """
    taken = inspect.signature(command).parameters
    parameters: dict[str, inspect.Parameter] = {}
    for name, parameter in taken.items():
        if not is_dataclass(parameter.annotation):
            parameters[name] = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            continue
        for row in rows_of(parameter.annotation):
            if not row.use.commands or command.__name__ in row.use.commands:
                parameters.setdefault(row.name, _as_meant_by(command.__name__, row))

    @wraps(command)
    def with_tables(**typed: Any) -> None:
        command(**{name: _taken(parameter.annotation, name, typed) for name, parameter in taken.items()})

    ordered = sorted(parameters.values(), key=_is_option)
    with_tables.__signature__ = inspect.Signature(ordered)  # pyright: ignore[reportAttributeAccessIssue]
    with_tables.__annotations__ = {parameter.name: parameter.annotation for parameter in ordered}
    return with_tables


def _as_meant_by(command: str, row: Row) -> inspect.Parameter:
    """The parameter, with the help of this command if it has one of its own."""
    if command not in row.use.help_of:
        return row.parameter
    kind, info = get_args(row.parameter.annotation)
    info = copy(info)
    info.help = row.use.help_of[command]
    return row.parameter.replace(annotation=Annotated[kind, info])


def _is_option(parameter: inspect.Parameter) -> bool:
    return not any(isinstance(detail, ArgumentInfo) for detail in get_args(parameter.annotation))


def _taken(kind: Any, name: str, typed: dict[str, Any]) -> Any:
    return filled(kind, typed) if is_dataclass(kind) else typed[name]


def filled(table: Any, typed: dict[str, Any]) -> Any:
    """A value of this table, with what was typed of its options."""
    values: dict[str, Any] = {}
    for each in fields(table):
        if is_dataclass(each.type):
            values[each.name] = filled(each.type, typed)
        elif each.name in typed:
            values[each.name] = tuple(typed[each.name] or ()) if each.default == () else typed[each.name]
    return table(**values)
