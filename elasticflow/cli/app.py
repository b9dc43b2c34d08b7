"""All commands in one application. Each is imported when it is called, or listed by `eflow --help`."""

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from elasticflow import __version__
from elasticflow.shared.library_imports import INTERRUPTED, NOTHING_DONE, ending_at_interrupt, without_gc

_JOBS, _POOL, _IDLE, _LEDGER = "Jobs", "Pool", "Tasks on idle GPUs", "Ledger and simulations"


@dataclass(frozen=True, slots=True)
class _Command:
    """panel: the group under which `eflow --help` lists it. module: of this package. job: what its errors name of the
    job that it makes: its options, or those in a file, too. settings: name of those for its context in the module; ""
    without any."""

    panel: str
    module: str
    job: Literal["", "options", "file"] = ""
    settings: str = ""


@dataclass(frozen=True, slots=True)
class _Group:
    """Its commands are in the `app` of the module, and its help in a function with its name."""

    panel: str
    module: str


_COMMANDS: Mapping[str, _Command | _Group] = {  # by name; that of its function has underscores
    "submit": _Command(_JOBS, "submit", job="file"),
    "quote": _Command(_JOBS, "quote", job="file"),
    "profile": _Command(_JOBS, "profile", job="file"),
    "run": _Command(_JOBS, "run", job="options"),
    "jobs": _Command(_JOBS, "listings"),
    "logs": _Command(_JOBS, "logs"),
    "stack": _Command(_JOBS, "running_workers"),
    "exec": _Command(_JOBS, "running_workers"),
    "explain": _Command(_JOBS, "job_commands"),
    "cancel": _Command(_JOBS, "job_commands"),
    "amend": _Command(_JOBS, "job_commands"),
    "checkpoint": _Command(_JOBS, "job_commands"),
    "fetch": _Command(_JOBS, "fetch"),
    "track": _Command(_JOBS, "track"),
    "scale-out": _Command(_JOBS, "pool"),
    "scale-in": _Command(_JOBS, "pool"),
    "up": _Command(_POOL, "up"),
    "down": _Command(_POOL, "pool"),
    "node": _Command(_POOL, "up"),
    "drain": _Command(_POOL, "pool"),
    "watch": _Command(_POOL, "watch"),
    "ui": _Command(_POOL, "ui"),
    "nodes": _Command(_POOL, "listings"),
    "report": _Command(_POOL, "report"),
    "configure": _Command(_POOL, "pool"),
    "doctor": _Command(_POOL, "doctor"),
    "keys": _Group(_POOL, "keys"),
    "map": _Command(_IDLE, "map_function"),
    "results": _Command(_IDLE, "results"),
    "loads": _Command(_IDLE, "listings"),
    "suits": _Command(_IDLE, "map_function"),
    "train": _Command(_IDLE, "train", job="options"),
    "events": _Group(_LEDGER, "events"),
    "replay": _Command(_LEDGER, "replay"),
    "simulate": _Command(_LEDGER, "replay", settings="SIMULATE_SETTINGS"),
}


class Commands(Mapping[str, Any]):
    """The commands by name, each imported when it is asked for."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(_COMMANDS)

    def __len__(self) -> int:
        return len(_COMMANDS)

    def __getitem__(self, name: str) -> Any:
        described = _COMMANDS[name]
        if name not in self._loaded:
            with ending_at_interrupt(NOTHING_DONE), without_gc():
                self._loaded[name] = _made(name, described)
        return self._loaded[name]


def _made(name: str, described: _Command | _Group) -> Any:
    module = import_module(f"elasticflow.cli.{described.module}")
    function: Callable[..., None] = getattr(module, _function_name(name))
    about: dict[str, Any] = {"short_help": _in_short(function), "rich_help_panel": described.panel}
    whole = typer.Typer(rich_markup_mode="rich", pretty_exceptions_enable=False, add_completion=False)
    if isinstance(described, _Group):
        whole.add_typer(module.app, name=name, **about)
        group: Any = typer.main.get_command(whole)
        return group.commands[name]
    if described.job:
        from elasticflow.cli.job_file import JobCommand, JobFileCommand

        about["cls"] = JobFileCommand if described.job == "file" else JobCommand
    settings = getattr(module, described.settings) if described.settings else None
    whole.command(name, context_settings=settings, **about)(function)
    return typer.main.get_command(whole)


def _function_name(command: str) -> str:
    """A name of Python's own gets an underscore."""
    return f"{command}_" if command == "exec" else command.replace("-", "_")


def _in_short(command: Callable[..., None]) -> str:
    """The first sentence of its help, on one line, for the list of commands."""
    sentence, _, _ = " ".join((command.__doc__ or "").split()).partition(". ")
    return sentence.removesuffix(".")


class _Eflow(TyperGroup):
    """Turns the errors of all commands into exit codes."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = Commands()

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has closed the pipe
            from elasticflow.shared.runtime.process.standard_streams import forget_stdout

            forget_stdout()
            raise typer.Exit(0) from None
        except typer.BadParameter as error:
            if error.param is not None or not isinstance(error.param_hint, str):  # the parser's: shown with the usage
                raise
            from elasticflow.cli.terminal_output import note

            note(f"eflow: {error.param_hint}: {error.message}")
            raise typer.Exit(2) from None
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("typer", "click"):  # wrong usage, or an exit code
                raise
            from elasticflow.cli.exit_codes import exit_code_of

            if (code := exit_code_of(error, ctx)) is None:
                raise
            raise typer.Exit(code) from None


app = typer.Typer(
    cls=_Eflow,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"eflow {__version__}")
        raise typer.Exit


@app.callback()
def eflow(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Deadline-guaranteed, elastic training: say what to train and by when, never
    on how many GPUs.

    Start here: [bold]eflow up[/bold], then [bold]eflow submit train.py
    --deadline 10m[/bold].

    Exit codes: 0 yes, 1 no (a job is rejected, a check fails), 2 wrong usage or
    no connection, 130 Ctrl-C.
    """
    from elasticflow.shared.runtime.process.logs import configure_logs
    from elasticflow.shared.runtime.process.variables import check_names

    check_names(os.environ)
    configure_logs(level=os.environ.get("EF_LOG_LEVEL", "warning"))
