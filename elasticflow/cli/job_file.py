"""A job file: the options of a command as TOML, turned into the words of a command line. Pure.

What a key means and which values it takes is declared by the option alone; `options_of` lists those of a command.
"""

import datetime
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin

import typer
from typer.core import TyperCommand

from elasticflow.cli.option_values import setting_word, sweep_word
from elasticflow.errors import InputUnusable, InvalidJob, did_you_mean
from elasticflow.shared.messages.syntax_problems import parsed_toml

_KEY_OF_FIELD = {  # of a specification, where an option has a shorter name
    "max_iterations": "iterations",
    "global_batch_size": "batch",
    "job_id": "name",
    "job_class": "class",
    "environment": "env",
    "min_gpus": "gpus",
    "max_gpus": "gpus",
    "gpu_memory_bytes": "gpu_memory",
    "requirements": "requirement",
    "own_environment": "environment",
    "continues": "from",
    "hyperparameters": "set",
    "secrets": "secret",
}
_TABLE_LINE = re.compile(r"\s*\[\s*[\"']?([\w-]+)")
_KEY_LINE = re.compile(r"\s*[\"']?([\w-]+)[\"']?\s*[=.]")


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """An option or argument of a command. word: as it is typed, "--gpu-type"; "" for an argument.

    kind: of its value: bool, int, float, list or str. is_path: a relative value is relative to the file.
    """

    key: str
    word: str
    kind: type
    metavar: str = ""
    help: str = ""
    is_path: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFile:
    """A valid job file. words: its options, as a command line has them.

    lines: of each key, by its table and name; the table of a key of the top level is "".
    """

    file: str
    words: tuple[str, ...]
    target: str
    arguments: tuple[str, ...]
    lines: Mapping[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def wrong(self, key: str, problem: str, table: str = "") -> InputUnusable:
        """The error that names the line of this key."""
        return _bad(self.file, _said_of(self.lines, table, key, problem))


def read_job_file(file: Path, data: bytes, options: Mapping[str, Option], ignored: Collection[str] = ()) -> JobFile:
    """options: by key. ignored: keys of other commands. Raises InputUnusable, naming each wrong key with its line."""
    try:
        text = data.decode()
        values = parsed_toml(text)
    except UnicodeDecodeError:
        raise _bad(file, "not a text in UTF-8") from None
    except ValueError as error:
        raise _bad(file, str(error)) from None
    reading = _Reading(file.parent, text, {*options, *ignored})
    for key, value in values.items():
        if key in options:
            reading.read(options[key], value)
        elif key not in ignored:
            meant = did_you_mean(_KEY_OF_FIELD.get(key, key), [*options, *ignored])
            reading.fail(key, f"unknown key{meant or '; the options that `eflow submit --help` lists are its keys'}")
    if not reading.target and not reading.problems:
        reading.problems.append('target: it is missing; name what is trained, like target = "train.py"')
    if reading.problems:
        raise _bad(file, *reading.problems)
    return JobFile(
        file=str(file),
        words=tuple(reading.words),
        target=reading.target,
        arguments=reading.arguments,
        lines=reading.lines,
    )


class _Reading:
    """What has been read of one file."""

    def __init__(self, folder: Path, text: str, known: Collection[str]) -> None:
        self.lines = _lines(text)
        self.problems: list[str] = []
        self.words: list[str] = []
        self.target = ""
        self.arguments: tuple[str, ...] = ()
        self._folder = folder
        self._known = known  # the keys of the top level

    def fail(self, key: str, problem: str, table: str = "") -> None:
        self.problems.append(_said_of(self.lines, table, key, problem))

    def read(self, option: Option, value: Any) -> None:
        if option.metavar.startswith("NAME="):
            self._read_table(option, value)
        elif option.kind is bool and isinstance(value, bool):
            self.words += [option.word] * value
        elif option.kind is list and _is_list_of_words(value):
            words = tuple(self._with_resolved_path(option, str(word)) for word in value)
            if option.word:
                self.words += [f"{option.word}={word}" for word in words]
            else:
                self.arguments = words
        elif (text := _text_of(option, value)) is not None:
            if option.word:
                self.words.append(f"{option.word}={self._resolved(text) if option.is_path else text}")
            else:
                self.target = self._resolved(text) if ".py" in text else text
        else:
            self.fail(option.key, f"must be {_allowed(option)}, not {_shown(value)}")

    def _read_table(self, option: Option, table: Any) -> None:
        """A table of names, each with one value or, for a sweep, with several."""
        if not isinstance(table, dict):
            self.fail(option.key, f"must be a table [{option.key}] of {option.metavar}, not {_shown(table)}")
            return
        several = option.metavar.endswith("...")
        for name, value in table.items():
            each = value if several and isinstance(value, list) else [value]
            if not name.isidentifier():
                self.fail(name, "must be a name of letters, digits and _", table=option.key)
            elif option.key == "env" and name in self._known:  # a line that was appended to the file
                self.fail(name, "is an option of the job: move it above the first [table]", table=option.key)
            elif several != isinstance(value, list) or not all(isinstance(v, bool | int | float | str) for v in each):
                allowed = "an array of numbers, texts or booleans" if several else "a number, a text or a boolean"
                self.fail(name, f"must be {allowed}, not {_shown(value)}", table=option.key)
            else:
                if option.metavar == "NAME=URI" and isinstance(value, str) and "://" not in value:
                    each = [self._resolved(value)]
                self.words.append(f"{option.word}={_table_word(option, name, each)}")

    def _with_resolved_path(self, option: Option, word: str) -> str:
        name, is_file, path = word.partition("=@") if option.metavar.endswith("=@FILE") else ("", "", "")
        if is_file:
            return f"{name}=@{self._resolved(path)}"
        return self._resolved(word) if option.is_path else word

    def _resolved(self, path: str) -> str:
        """A path of the file, from the current folder."""
        return str(self._folder / path)


def _table_word(option: Option, name: str, values: list[Any]) -> str:
    """NAME=VALUE. Only hyperparameters have types; other values are texts."""
    if option.metavar.endswith("..."):
        return sweep_word(name, values)
    return setting_word(name, values[0]) if option.key == "set" else f"{name}={_shown_plain(values[0])}"


def _text_of(option: Option, value: Any) -> str | None:
    """The value as a word of the command line; None if it has a wrong type."""
    if option.kind is bool or option.kind is list or isinstance(value, bool):
        return None
    if isinstance(value, int) and (option.kind is int or option.metavar.startswith("N|")):
        return str(value)
    if option.kind is float and isinstance(value, int | float):
        return str(value)
    if option.kind in (int, float):
        return None
    if isinstance(value, datetime.datetime) and option.metavar == "WHEN":
        return value.isoformat()
    return value if isinstance(value, str) else None


def _allowed(option: Option) -> str:
    """The values of an option, in words."""
    kinds = {bool: "true or false", int: "a whole number", float: "a number", list: "an array of texts"}
    what = kinds.get(option.kind, "a text")
    if option.kind is str and option.metavar:
        what += f": {option.metavar}"
    return what + (f" ({option.help.rstrip('.')})" if option.help and option.kind is not bool else "")


def _is_list_of_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(v, str | int | float) and not isinstance(v, bool) for v in value)


def _shown(value: Any) -> str:
    """The value as TOML writes it."""
    if isinstance(value, bool):
        return str(value).lower()
    return "a table" if isinstance(value, dict) else f"{value!r:.80}"


def _shown_plain(value: Any) -> str:
    return value if isinstance(value, str) else _shown(value)


def _bad(file: Path | str, *problems: str) -> InputUnusable:
    """problems: one for each wrong key, with its line."""
    return InputUnusable("bad_job_file", f"{file}: {'; '.join(problems)}")


def _said_of(lines: Mapping[tuple[str, str], int], table: str, key: str, problem: str) -> str:
    """The problem of a key, with its line and table."""
    line = lines.get((table, key), lines.get(("", table or key)))
    return f"{f'line {line}: ' if line else ''}{f'[{table}] ' if table else ''}{key}: {problem}"


def _lines(text: str) -> dict[tuple[str, str], int]:
    """The first line of each key, by table and name; a table itself is the key of its name at the top level."""
    found: dict[tuple[str, str], int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := _TABLE_LINE.match(line):
            table = header[1]
            found.setdefault(("", table), number)
        elif key := _KEY_LINE.match(line):
            found.setdefault((table, key[1]), number)
    return found


# --- A command whose first argument may be a job file: `eflow submit job.toml` -------------------------
# The keys of the file are the options of the command; an option on the command line overrides the file.

_FILE = "job_file"  # key in a context's meta
_OPTIONS_OF = "submit"  # a file may have the options of this command, whichever command reads it


class JobCommand(TyperCommand):
    """Its errors name the options that gave a job its wrong values."""

    def invoke(self, ctx: Any) -> Any:
        return self._naming_lines(ctx, super().invoke, ctx)

    def _naming_lines(self, ctx: Any, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; a wrong value of the file is named with its line. Raises InputUnusable, InvalidJob."""
        try:
            return call(*arguments)
        except InvalidJob as error:
            placed = (self._with_place(ctx, problem) for problem in error.problems)
            raise InvalidJob(*dict.fromkeys(placed)) from None  # one option may give two fields
        except typer.BadParameter as error:
            job_file, typed = ctx.meta.get(_FILE, (None, {}))
            parameter = next((p for p in self.params if error.param is p or error.param_hint in p.opts), None)
            if job_file is None or parameter is None or parameter.name in typed:
                raise
            problem = error.message.removeprefix("Value error, ").rstrip(".")  # as pydantic begins it
            raise job_file.wrong(_key(parameter), problem) from None

    def _with_place(self, ctx: Any, problem: str) -> str:
        """The problem of a field of the job, by the name of the option that gave it, or by its line in the file."""
        name, _, what = problem.partition(": ")
        option, _, key = name.removeprefix("--").partition(" ")  # "--set lr: ..."
        option = _KEY_OF_FIELD.get(option, option)
        parameter = next((each for each in self.params if _word(each) and _key(each) == option), None)
        if parameter is None or not what:
            return problem
        job_file, typed = ctx.meta.get(_FILE, (None, {}))
        names = {word.partition("=")[0] for word in typed.get(parameter.name, ())} if key else set[str]()
        is_of_file = key not in names if key else parameter.name not in typed
        if job_file is not None and is_of_file and (option if key else "", key or option) in job_file.lines:
            return str(job_file.wrong(key or option, what, option if key else ""))
        is_typed = ctx.get_parameter_source(parameter.name).name == "COMMANDLINE"
        return f"{_word(parameter)}{key and f' {key}'}: {what}" if is_typed else problem


class JobFileCommand(JobCommand):
    """Reads the options of a job file before those of the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return self._parsed(ctx, args)
        except Exception as raised:
            error: Any = raised
            if hasattr(error, "possibilities") and "--" not in args:  # that only an unknown option has
                option, script = error.option_name, next((word for word in args if word.endswith(".py")), "")
                where = f"; an argument of the script comes after --: {script} -- {option} ..." if script else ""
                error.message = f"No such option: {option}{where}"
            raise

    def _parsed(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell completes a word
            return super().parse_args(ctx, args)
        typed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        target = typed.get("target")
        if not (isinstance(target, str) and target.endswith(".toml")):
            return super().parse_args(ctx, args)
        job_file = self._read(ctx, Path(target))
        ctx.meta[_FILE] = job_file, {name: value for name, value in typed.items() if value is not None}
        typed_data = [f"--data={text.partition('=')[0]}=" for text in typed.get("data") or ()]
        words = [word for word in job_file.words if not word.startswith(tuple(typed_data))]
        rest = self._naming_lines(ctx, super().parse_args, ctx, [*words, *args])
        ctx.params["target"] = job_file.target
        if "arguments" in ctx.params and not ctx.params["arguments"]:
            ctx.params["arguments"] = list(job_file.arguments)
        return rest

    def _read(self, ctx: Any, file: Path) -> JobFile:
        own, other = options_of(self), self
        if ctx.parent is not None and (found := ctx.parent.command.get_command(ctx.parent, _OPTIONS_OF)) is not None:
            other = found
        return read_job_file(file, file.read_bytes(), own, ignored=options_of(other).keys() - own.keys())


def options_of(command: Any) -> dict[str, Option]:
    """The options and arguments of a command, by their key in a job file."""
    return {option.key: option for option in map(_option, command.params)}


def _option(parameter: Any) -> Option:
    kind = parameter.type_descriptor.annotation
    choices = [str(member.value) for member in kind] if inspect.isclass(kind) and issubclass(kind, Enum) else []
    return Option(
        key=_key(parameter),
        word=_word(parameter),
        kind=kind if kind in (bool, int, float) else list if get_origin(kind) is list else str,
        metavar=parameter.metavar or "|".join(choices),
        help=getattr(parameter, "help", None) or "",
        is_path=Path in (kind, *get_args(kind)),
    )


def _key(parameter: Any) -> str:
    return _word(parameter).removeprefix("--").replace("-", "_") or parameter.name


def _word(parameter: Any) -> str:
    return next((word for word in parameter.opts if word.startswith("--")), "")
