"""The reference pages, generated from the code: `python docs/generate_reference.py PAGE` prints one.

The site builds them (docs/site_hooks.py); no copy is kept, so none can be out of date.
"""

import ast
import inspect
import io
import re
import sys
import textwrap
import tokenize
from collections.abc import Callable, Iterable, Iterator
from types import UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import typer

import elasticflow
from elasticflow.cli.app import app
from elasticflow.sdk.job import ElasticJob
from elasticflow.services.executor.processes.gpu_watch import GpuGauges
from elasticflow.services.executor.settings import ExecutorSettings
from elasticflow.services.monitor.service import MonitorSettings, PoolGauges
from elasticflow.shared.errors import ElasticFlowError, Explained
from elasticflow.shared.messages import pool_config
from elasticflow.shared.messages.codec import MESSAGE_TYPES
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.metrics import Metrics
from elasticflow.shared.runtime.process.settings import Settings
from elasticflow.simulator.simulate_command import app as simulate_app


class Field(NamedTuple):
    """One annotated attribute of a class, as its source declares it."""

    name: str
    type: str
    default: str
    comment: str


def fields_of(owner: type[Any]) -> Iterator[Field]:
    """The annotated attributes of a class, with the comments beside or above them."""
    source = textwrap.dedent(inspect.getsource(owner))
    comments = _comments(source)
    body = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef)).body
    for node in body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            if node.target.id.startswith("_") or node.target.id == "VERSION":
                continue
            beside = [
                comments[line][0]
                for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if line in comments
            ]
            comment = " ".join([*_above(comments, node.lineno), *beside])
            yield Field(node.target.id, _type_of(node), _default_of(node), comment)


def _comments(source: str) -> dict[int, tuple[str, bool]]:
    """Line number -> its comment, and whether the comment is alone on its line."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {
        token.start[0]: (token.string.lstrip("# ").strip(), token.line.lstrip().startswith("#"))
        for token in tokens
        if token.type == tokenize.COMMENT
    }


def _above(comments: dict[int, tuple[str, bool]], line: int) -> list[str]:
    above: list[str] = []
    while (line := line - 1) in comments and comments[line][1] and not comments[line][0].startswith("---"):
        above.insert(0, comments[line][0])
    return above


class _WithoutAnnotated(ast.NodeTransformer):
    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if isinstance(node.value, ast.Name) and node.value.id == "Annotated":
            return node.slice.elts[0] if isinstance(node.slice, ast.Tuple) else node.slice
        return node.slice if isinstance(node.value, ast.Name) and node.value.id == "ClassVar" else node


def _type_of(node: ast.AnnAssign) -> str:
    return ast.unparse(_WithoutAnnotated().visit(node.annotation)).replace(" | ", " or ").replace("'", "")


def _default_of(node: ast.AnnAssign) -> str:
    if node.value is None:
        return ""
    default = ast.unparse(node.value)
    return "empty" if default.startswith("field(default_factory") else default


def _prose(docstring: str | None) -> str:
    """A docstring as Markdown: `<` is shown outside of code."""
    parts = re.split(r"(`[^`]*`)", inspect.cleandoc(docstring or ""))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def _sentence(docstring: str | None) -> str:
    return " ".join(_prose(docstring).split())


def _table(headings: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [" | ".join(headings), " | ".join("---" for _ in headings)]
    lines += [" | ".join(cell.replace("\n", " ").replace("|", "\\|") for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


def _field_table(owner: type[Any]) -> str:
    rows = [(_code(f.name), _code(f.type), _code(f.default), _prose(f.comment)) for f in fields_of(owner)]
    return _table(("field", "type", "default", "meaning"), rows)


# --- pages ---


def cli_page() -> str:
    """Every command of `eflow`, with its options."""
    every = commands()
    parts = [
        "# CLI",
        _help(typer.main.get_command(app).help),
        "## Which pool",
        "Every command that connects to a pool takes these options.",
    ]
    shared = {name: option for command in every.values() for name, option in _pool_options(command).items()}
    parts.append(_option_table(shared.values()))
    parts += [part for name, command in every.items() for part in _command(f"eflow {name}", command)]
    return "\n\n".join(parts)


def commands() -> dict[str, Any]:
    """Every command of `eflow`, by its name; `simulate` is the simulator's own."""
    group: Any = typer.main.get_command(app)
    return {**group.commands, "simulate": typer.main.get_command(simulate_app)}


def _pool_options(command: Any) -> dict[str, Any]:
    return {p.name: p for p in command.params if getattr(p, "rich_help_panel", None) == "Which pool"}


def _command(name: str, command: Any) -> Iterator[str]:
    own = [p for p in command.params if p.name != "help" and p.name not in _pool_options(command)]
    yield f"## {name}"
    yield _help(command.help)
    if own:
        yield _option_table(own)
    for sub, nested in getattr(command, "commands", {}).items():
        yield from _command(f"{name} {sub}", nested)


def _help(text: str | None) -> str:
    """Help as typer reads it: `\\b` begins a paragraph whose lines stay as they are."""
    shown: list[str] = []
    for paragraph in re.sub(r"\[/?bold\]", "`", inspect.cleandoc(text or "")).split("\n\n"):
        verbatim = paragraph.lstrip().startswith("\b")
        lines = paragraph.replace("\b", "").strip("\n")
        shown.append(f"```\n{textwrap.dedent(lines)}\n```" if verbatim else _prose(lines))
    return "\n\n".join(shown)


def _option_table(options: Iterable[Any]) -> str:
    def row(option: Any) -> tuple[str, ...]:
        is_option = option.param_type_name == "option"
        names = ", ".join([*option.opts, *option.secondary_opts]) if is_option else ""
        value = "" if getattr(option, "is_flag", False) else _value_of(option)
        meaning = _sentence(option.help) + (f" Environment: `{option.envvar}`." if option.envvar else "")
        return _code(names or value), _code(value if names else ""), _code(_shown(option)), meaning

    return _table(("option", "value", "default", "meaning"), map(row, options))


def _value_of(option: Any) -> str:
    annotation = option.type_descriptor.annotation
    members = getattr(annotation, "__members__", {}).values()
    choices = get_args(annotation) if get_origin(annotation) is Literal else [member.value for member in members]
    bounds = "" if option.min is None else f" {option.min:g}.." + ("" if option.max is None else f"{option.max:g}")
    return (option.metavar or ", ".join(map(str, choices)) or option.name.upper()) + bounds


def _shown(option: Any) -> str:
    """The default as help shows it."""
    if isinstance(option.show_default, str):
        return option.show_default
    plain = isinstance(option.default, str | int | float) and not isinstance(option.default, bool)
    return str(option.default) if plain and option.show_default else ""


def sdk_page() -> str:
    """Every public name of the package, by kind."""
    public = {name: getattr(elasticflow, name) for name in elasticflow.__all__ if not name.startswith("__")}
    functions = {name: value for name, value in public.items() if inspect.isfunction(value)}
    classes = {name: value for name, value in public.items() if inspect.isclass(value)}
    errors = {name: value for name, value in classes.items() if issubclass(value, Exception)}
    messages = {name: value for name, value in classes.items() if name in MESSAGE_TYPES}
    others = {name: value for name, value in classes.items() if name not in errors | messages}
    parts = ["# SDK", _prose(elasticflow.__doc__), "## Functions"]
    parts += [part for name, value in functions.items() for part in _function(name, value)]
    for name, value in others.items():
        parts += [f"## {name}", _prose(value.__doc__)]
        parts += [_field_table(value)] * (value in (ElasticJob, JobSpec))
        for method, code in _public_methods(value).items():
            parts += _function(f"{name}.{method}", code)
    parts += ["## Results", "[Messages](messages.md) lists their fields.", _summary_table(messages)]
    parts += ["## Errors", _summary_table(errors), "## Codes of errors", _CODES, _code_table()]
    aliases = ((_code(n), _code(_alias(v))) for n, v in public.items() if n not in functions | classes)
    return "\n\n".join([*parts, "## Types", _table(("name", "type"), aliases)])


_CODES = (
    "Each expected failure has a `code` for programs. Where a command with `--json` prints an error, its code stands "
    "beside it. The code is the name of the class in snake_case, such as `unknown_job`, or one of these."
)


def _code_table() -> str:
    kinds = (kind for kind in Explained.__subclasses__() if issubclass(kind, ElasticFlowError))
    rows = (
        (_code(kind.__name__), ", ".join(map(_code, get_args(get_args(kind.__orig_bases__[0])[0])))) for kind in kinds
    )
    return _table(("class", "codes"), rows)


def _function(name: str, value: Callable[..., Any]) -> tuple[str, ...]:
    return (
        f"### {name}",
        f"```python\n{name.rpartition('.')[2]}{_signature(value)}\n```",
        _prose(value.__doc__),
    )


def _summary_table(classes: dict[str, type[Any]]) -> str:
    summaries = ((_code(n), _sentence(inspect.cleandoc(v.__doc__ or "").split("\n\n")[0])) for n, v in classes.items())
    return _table(("name", "meaning"), summaries)


def _alias(value: Any) -> str:
    origin, arguments = get_origin(value), get_args(value)
    if origin is Annotated:
        return _alias(arguments[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_alias, arguments))
    return value.__name__ if inspect.isclass(value) and not arguments else re.sub(r"[\w.]+\.(\w+)", r"\1", str(value))


def _signature(function: Callable[..., Any]) -> str:
    node = ast.parse(textwrap.dedent(inspect.getsource(function))).body[0]
    assert isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    returned = "" if node.returns is None else f" -> {ast.unparse(node.returns)}"
    parameters = ast.unparse(node.args)
    if len(parameters) > 90:
        parameters = "\n    " + parameters.replace(", ", ",\n    ") + ",\n"
    return f"({parameters}){returned}"


def _public_methods(owner: type[Any]) -> dict[str, Callable[..., Any]]:
    bases = [base for base in owner.__mro__ if base.__module__.startswith(("elasticflow.sdk", "elasticflow.client"))]
    methods = {name: value for base in bases for name, value in vars(base).items() if inspect.isfunction(value)}
    return {name: value for name, value in methods.items() if not name.startswith("_")}


def settings_page() -> str:
    """Environment variables of the services."""
    parts = [
        "# Settings",
        "Each service reads these environment variables once, at its start, and logs them.",
    ]
    parts += [
        _variable_table(Settings),
        "## Executor",
        "The executor also reads these.",
        _variable_table(ExecutorSettings),
        "## Monitor",
        "The monitor also reads these.",
        _variable_table(MonitorSettings),
    ]
    parts.append("Settings of the policies are part of the ledger: [pool configuration](pool-config.md).")
    return "\n\n".join(parts)


def _variable_table(owner: Any) -> str:
    defaults = _reads(owner.from_environment)
    rows: list[tuple[str, ...]] = []
    for field in fields_of(owner):
        variable, _, meaning = field.comment.partition(" ")
        variable = variable.rstrip(":,;")
        default, bounds = defaults.get(variable, ("", ""))
        rows.append((_code(variable), default, bounds, _prose(meaning) or field.name.replace("_", " ")))
    return _table(("variable", "default", "values", "meaning"), rows)


def _reads(function: Callable[..., Any]) -> dict[str, tuple[str, str]]:
    """Variable -> its default and its allowed values, from the calls of `Reader`."""
    found: dict[str, tuple[str, str]] = {}
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and len(call.args) > 1):
            continue
        variable, default = call.args[0], call.args[1]
        if not (isinstance(variable, ast.Constant) and isinstance(variable.value, str)):
            continue
        known = isinstance(default, ast.Constant)
        shown = (_code(str(default.value)) or "none") if known else "depends on the machine"
        bounds = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
        if "low" in bounds:
            values = f"{bounds['low']} to {bounds['high'].replace('_', ' ')}"
        elif len(call.args) > 2 and isinstance(call.args[2], ast.Tuple):
            values = ", ".join(_code(ast.literal_eval(choice)) for choice in call.args[2].elts)
        else:
            values = ""
        found.setdefault(variable.value, (shown, values))
    return found


def pool_config_page() -> str:
    """Every field of `PoolConfig` and of what it holds."""
    owners = (pool_config.PoolConfig, pool_config.TenantQuota, pool_config.GpuHourBudget)
    parts = [
        "# Pool configuration",
        "Set it with `eflow up --config FILE` or `eflow configure FILE`, as TOML or JSON.",
    ]
    for owner in owners:
        parts += [f"## {owner.__name__}", _prose(owner.__doc__), _field_table(owner)]
    return "\n\n".join(parts)


def messages_page() -> str:
    """Every message, grouped by the module that declares it."""
    parts = [
        "# Messages",
        "A message travels in an [envelope](../how-to/publish-messages.md#the-envelope). [Subjects]"
        "(../explanation/architecture.md#subjects) lists where each is published.",
    ]
    by_module: dict[str, list[type[Any]]] = {}
    for message in MESSAGE_TYPES.values():
        by_module.setdefault(message.__module__, []).append(message)
    for module, messages in by_module.items():
        path = module.removeprefix("elasticflow.").replace(".", "/")
        parts += [f"## {path}.py", _sentence(sys.modules[module].__doc__)]
        for message in messages:
            parts += [f"### {message.__name__}", _prose(message.__doc__), _field_table(message)]
    parts += ["## Job specification", _prose(JobSpec.__doc__), _field_table(JobSpec)]
    return "\n\n".join(parts)


def metrics_page() -> str:
    """Every metric of the services."""
    metrics = Metrics("service", "pool")
    common = _metric_names(metrics)
    PoolGauges(metrics)
    executors = Metrics("service", "pool")
    GpuGauges(executors)
    parts = [
        "# Metrics",
        "Each service serves them at `/metrics`, and its health at `/healthz`, on `EF_METRICS_PORT`. "
        "Every metric has the labels `service` and `pool`.",
        "## Every service",
        _metric_table(metrics, common),
        "## Monitor",
        _metric_table(metrics, _metric_names(metrics) - common),
        "## Executor",
        "Of each GPU that NVML knows, with the label `gpu`, its number on the node.",
        _metric_table(executors, _metric_names(executors) - common),
    ]
    return "\n\n".join(parts)


def _metric_names(metrics: Metrics) -> set[str]:
    return {family.name for family in metrics.registry.collect() if family.name.startswith("ef_")}


def _metric_table(metrics: Metrics, names: set[str]) -> str:
    families = sorted((f for f in metrics.registry.collect() if f.name in names), key=lambda family: family.name)
    full = {f.name: f.name + "_total" * (f.type == "counter") for f in families}
    rows = [(_code(full[f.name]), f.type, _prose(f.documentation)) for f in families]
    return _table(("metric", "type", "meaning"), rows)


PAGES: dict[str, Callable[[], str]] = {
    "cli": cli_page,
    "sdk": sdk_page,
    "settings": settings_page,
    "pool-config": pool_config_page,
    "messages": messages_page,
    "metrics": metrics_page,
}


if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in PAGES:
        sys.exit(f"usage: python docs/generate_reference.py {{{','.join(PAGES)}}}")
    print(PAGES[sys.argv[1]]())
