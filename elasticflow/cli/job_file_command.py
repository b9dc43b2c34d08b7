"""A command whose first argument may be a job file: `eflow submit job.toml`.

The keys of the file are the options of the command; an option on the command line overrides the file.
"""

import inspect
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from elasticflow.cli.job_file import JobFile, Option, read_job_file

_FILE = "job_file"  # key in a context's meta
_OPTIONS_OF = "submit"  # a file may have the options of this command, whichever command reads it


class JobFileCommand(TyperCommand):
    """Reads the options of a job file before those of the command line."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if ctx.resilient_parsing:  # the shell completes a word
            return super().parse_args(ctx, args)
        typed, _, _ = self.make_parser(ctx).parse_args(args=list(args))
        target = typed.get("target")
        if not (isinstance(target, str) and target.endswith(".toml")):
            return super().parse_args(ctx, args)
        job_file = self._read(ctx, Path(target))
        ctx.meta[_FILE] = job_file, {name for name, value in typed.items() if value is not None}
        typed_data = [f"--data={text.partition('=')[0]}=" for text in typed.get("data") or ()]
        words = [word for word in job_file.words if not word.startswith(tuple(typed_data))]
        rest = self._naming_lines(ctx, super().parse_args, ctx, [*words, *args])
        ctx.params["target"] = job_file.target
        if "arguments" in ctx.params and not ctx.params["arguments"]:
            ctx.params["arguments"] = list(job_file.arguments)
        return rest

    def invoke(self, ctx: Any) -> Any:
        return self._naming_lines(ctx, super().invoke, ctx)

    def _read(self, ctx: Any, file: Path) -> JobFile:
        own, other = options_of(self), self
        if ctx.parent is not None and (found := ctx.parent.command.get_command(ctx.parent, _OPTIONS_OF)) is not None:
            other = found
        return read_job_file(file, file.read_bytes(), own, ignored=options_of(other).keys() - own.keys())

    def _naming_lines(self, ctx: Any, call: Callable[..., Any], *arguments: Any) -> Any:
        """Call; a wrong value of the file is named with its line. Raises BadJobFile."""
        try:
            return call(*arguments)
        except typer.BadParameter as error:
            job_file, typed = ctx.meta.get(_FILE, (None, set()))
            parameter = next((p for p in self.params if error.param is p or error.param_hint in p.opts), None)
            if job_file is None or parameter is None or parameter.name in typed:
                raise
            problem = error.message.removeprefix("Value error, ").rstrip(".")  # as pydantic begins it
            raise job_file.wrong(_key(parameter), problem) from None


def options_of(command: Any) -> dict[str, Option]:
    """The options and arguments of a command, by their key in a job file."""
    hints = get_type_hints(inspect.unwrap(command.callback))
    options = (_option(p, hints[p.name]) for p in command.params if p.name in hints)
    return {option.key: option for option in options}


def _option(parameter: Any, hint: Any) -> Option:
    kind = next((part for part in get_args(hint) if part is not NoneType), hint)
    choices = [str(member.value) for member in kind] if inspect.isclass(kind) and issubclass(kind, Enum) else []
    return Option(
        key=_key(parameter),
        word=_word(parameter),
        kind=kind if kind in (bool, int) else list if list in (hint, get_origin(kind)) else str,
        metavar=parameter.metavar or "|".join(choices),
        help=getattr(parameter, "help", None) or "",
        is_path=Path in (kind, *get_args(kind)),
    )


def _key(parameter: Any) -> str:
    return _word(parameter).removeprefix("--").replace("-", "_") or parameter.name


def _word(parameter: Any) -> str:
    return next((word for word in parameter.opts if word.startswith("--")), "")
