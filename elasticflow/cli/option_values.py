"""Values of options, from the text of a command line and, for a job file, back to it."""

import json
import os
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from elasticflow.sdk.job_fields import uri_of
from elasticflow.shared.messages.event_summary import gpus_of_words
from elasticflow.shared.messages.gpus import range_problem
from elasticflow.shared.messages.job_spec import Scalar
from elasticflow.times import Deadline, duration_in_words, parse_deadline, seconds_of, timestamp_of

_SECRET: Any = {"param_hint": "--secret"}
_SIZE = re.compile(r"(\d+)([KMGT]i)?B?")


def deadline_of(text: str, option: str = "--deadline") -> Deadline:
    """The value of an option that takes a time; neither absolute nor relative if it is not given."""
    try:
        return parse_deadline(text) if text else Deadline()
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def require_future(deadline: Deadline, now_s: float, option: str = "--deadline", *, otherwise: str = "") -> None:
    """Refuse one that is over: as a date and a duration, because a slip in either explains it.

    otherwise: what the user may want instead.
    """
    if deadline.within is not None and deadline.within <= 0:
        raise typer.BadParameter(f"it must be longer than 0 s{otherwise}", param_hint=option)
    if deadline.deadline is not None and (past_s := now_s - deadline.deadline.timestamp()) >= 0:
        when = deadline.deadline.isoformat(" ")
        raise typer.BadParameter(
            f"{when} is {duration_in_words(past_s)} in the past; choose a later time{otherwise}", param_hint=option
        )


def end_of(text: str, option: str, now_s: float) -> float:
    """Seconds since 1970 of a duration from now, of a time, or of such a number itself, as Slurm has it."""
    return _end_s(_end_of(text, option), now_s)


def future_end_of(text: str, option: str, now_s: float, *, otherwise: str = "") -> float:
    """As `end_of`, but refused if it is over. otherwise: as in `require_future`."""
    end = _end_of(text, option)
    require_future(end, now_s, option, otherwise=otherwise)
    return _end_s(end, now_s)


def _end_s(end: Deadline, now_s: float) -> float:
    return now_s + end.within if end.within is not None else timestamp_of(end.deadline or 0.0)


def _end_of(text: str, option: str) -> Deadline:
    if not (text.isascii() and text.isdigit()):
        return deadline_of(text, option)
    try:
        return Deadline(deadline=datetime.fromtimestamp(int(text), UTC).astimezone())
    except (ValueError, OverflowError, OSError) as error:
        raise typer.BadParameter(f"{text} is no time: {error}", param_hint=option) from None


def duration_of(text: str, option: str) -> float | None:
    """Seconds; None if the option is not given."""
    try:
        return seconds_of(text) if text else None
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None


def gpus_named(texts: Sequence[str], option: str) -> Sequence[str]:
    """The texts, each of which names GPUs of a node, such as "node-1:3" or "node-1:0,3"."""
    try:
        gpus_of_words(" ".join(texts))
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=option) from None
    return texts


def size_of(text: str, option: str) -> int:
    """Bytes of "512MiB", "8Gi" or "0"."""
    found = _SIZE.fullmatch(text)
    if found is None:
        raise typer.BadParameter(f"{text!r} is not a size; write 512MiB or 8GiB", param_hint=option)
    return int(found[1]) << 10 * ("KMGT".index(found[2][0]) + 1 if found[2] else 0)


def parse_gpus(text: str) -> tuple[int | None, int | None]:
    """Least and most GPUs of "4" (no others), "2..8", "2.." or "..8"; None for an open end."""
    least, separator, most = text.partition("..")
    ends = [end for end in (least, most) if end]
    if not ends or not all(end.isascii() and end.isdigit() for end in ends):
        raise typer.BadParameter(f"{text!r} is not like 4, 2..8, 2.. or ..8", param_hint="--gpus")
    most = most if separator else least
    asked = int(least) if least else None, int(most) if most else None
    wrong = range_problem(asked[0] or 1, asked[1]) if asked[1] != 0 else None  # a 0 has an error of its own
    if wrong is not None:
        raise typer.BadParameter(wrong, param_hint="--gpus")
    return asked


def parse_setting(text: str, option: str = "--set") -> tuple[str, Scalar]:
    """NAME=VALUE; the value is a number, boolean or quoted text if it is valid JSON of one, else text."""
    name, separator, value = text.partition("=")
    if not separator or not name.isidentifier():
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint=option)
    try:
        parsed = json.loads(value)
    except (ValueError, RecursionError):
        return name, value
    return name, parsed if isinstance(parsed, bool | int | float | str) else value


def parse_variable(text: str) -> tuple[str, str]:
    """NAME=VALUE of --env."""
    name, separator, value = text.partition("=")
    if not separator or not name:
        raise typer.BadParameter(f"{text!r} is not NAME=VALUE", param_hint="--env")
    return name, value


def parse_data(texts: Sequence[str]) -> dict[str, str]:
    """The URI of each name, of NAME=URI or NAME=PATH."""
    data: dict[str, str] = {}
    for text in texts:
        name, separator, uri = text.partition("=")
        if not separator or not name.isidentifier() or not uri:
            raise typer.BadParameter(
                f"{text!r} is not NAME=URI, with a NAME of letters, digits and _ that begins with no digit",
                param_hint="--data",
            )
        if name in data:
            raise typer.BadParameter(f"{name} is named twice; give each data a name of its own", param_hint="--data")
        data[name] = uri_of(uri)
    return data


def read_secret(text: str) -> tuple[str, str]:
    """NAME, with its value in the environment, or NAME=@FILE."""
    name, separator, file = text.partition("=")
    if not separator:
        if name not in os.environ:
            raise typer.BadParameter(f"the variable {name} is not set here; set it, or write {name}=@FILE", **_SECRET)
        return name, _variable(name, os.environ[name])
    if not file.startswith("@"):
        raise typer.BadParameter(f"a value typed here could be read by others; write {name} or {name}=@FILE", **_SECRET)
    try:
        return name, _variable(name, Path(file[1:]).read_text().rstrip("\n"))
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{name}: {file[1:]} cannot be read: {error}", **_SECRET) from None


def _variable(name: str, value: str) -> str:
    """The value, which a process gets as a variable."""
    is_text = value == value.encode(errors="replace").decode()
    if not is_text or "\0" in value:
        raise typer.BadParameter(f"{name}: its value must be a text in UTF-8 without zero bytes", **_SECRET)
    return value


def setting_word(name: str, value: Scalar) -> str:
    """NAME=VALUE, of which `parse_setting` makes this value."""
    is_plain = isinstance(value, str) and parse_setting(f"{name}={value}") == (name, value)
    return f"{name}={value if is_plain else json.dumps(value)}"


def parse_sweep(texts: Sequence[str]) -> dict[str, tuple[Scalar, ...]]:
    """The values of each name, of NAME=VALUE,VALUE or of NAME=[JSON, JSON]; the last one of a name counts."""
    sweep: dict[str, tuple[Scalar, ...]] = {}
    for text in texts:
        name, separator, listed = text.partition("=")
        if not separator or not name.isidentifier() or not listed:
            raise typer.BadParameter(f"{text!r} is not NAME=VALUE,VALUE", param_hint="--sweep")
        values = _json_array(listed)
        if values is None:
            values = tuple(parse_setting(f"{name}={value}", "--sweep")[1] for value in listed.split(","))
        if not values or len(set(map(json.dumps, values))) < len(values):
            raise typer.BadParameter(f"{name} needs values, each once, not {listed}", param_hint="--sweep")
        sweep[name] = values
    return sweep


def sweep_word(name: str, values: Sequence[Scalar]) -> str:
    """NAME=[JSON, JSON], of which `parse_sweep` makes these values."""
    return f"{name}={json.dumps(values)}"


def _json_array(text: str) -> tuple[Scalar, ...] | None:
    """The scalars of a JSON array; None if the text is another value."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list) or not all(isinstance(value, bool | int | float | str) for value in values):
        return None
    return tuple(values)
