"""`eflow submit --pools` and `eflow quote --pools`: what several pools answer, as a table and as JSON."""

import asyncio
import shlex
from dataclasses import replace
from typing import Any

import typer
from rich.text import Text

from elasticflow.cli.command_options import SeveralPoolsOptions
from elasticflow.cli.decision_output import decision_as_json, show_decision, show_quote
from elasticflow.cli.job_options import SubmissionOptions
from elasticflow.cli.option_values import read_secret
from elasticflow.cli.terminal_output import note, print_json, say, say_line
from elasticflow.client.pool_choice import pools_in_order
from elasticflow.client.pool_front import NamedPool, PoolAnswer, PoolFront, PoolsDecision, named_pools
from elasticflow.history.formatting import measured_in_words, undecided_in_words
from elasticflow.history.tables import state_word, table
from elasticflow.sdk.submission import Submission
from elasticflow.shared.messages.events import JobAdmitted, JobRejected, ProfileRequested
from elasticflow.shared.messages.job_spec import JobSpec
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.times import duration_in_words, moment_in_words


def refuse_with_pools(options: SubmissionOptions, *, detach: bool, again: bool) -> None:
    """Raises typer.BadParameter for what goes to one pool."""
    reasons = {
        "--pool": ("--pool" in options.where, "name one pool with it, or several with --pools"),
        "--sweep": (options.sweep, "its jobs go to one pool; name it with --pool"),
        "--from": (options.source, "a checkpoint is in one pool; name it with --pool"),
        "--quote": (options.quote, "a quote is reserved in one pool; name it with --pool"),
        "--again": (again, "the name is used again in one pool; name it with --pool"),
        "--detach": (detach, "pools may reject the job, so the command waits for their decisions"),
    }
    for option, (given, reason) in reasons.items():
        if given:
            raise typer.BadParameter(reason, param_hint=option)


def decided_by_pools(
    ready: Submission, options: SubmissionOptions, where: SeveralPoolsOptions, sent: list[str]
) -> PoolsDecision:
    """Submit to the best pool. sent: has the job with the options of the pool that may have it."""

    def keep(pool: NamedPool, job_id: str) -> None:
        sent[:] = [shlex.join((job_id, *_words(pool, options)))]  # earlier pools have rejected it

    front = _front(where)
    front.on_sent, front.on_undecided = keep, _say_undecided
    front.on_warning = lambda warning: note(f"warning: {warning}")
    front.on_measured = lambda event: note(f"{event.job_id}: {measured_in_words(event)} ...")
    secrets = dict(map(read_secret, options.secrets))
    return asyncio.run(front.submit(ready.spec, job_id=options.name, code=ready.code, secrets=secrets))


def quote_of_pools(
    spec: JobSpec,
    options: SubmissionOptions,
    where: SeveralPoolsOptions,
    *,
    wanted_s: float | None,
    as_json: bool,
) -> int:
    """Print the quotes of all pools, the best in full. Returns the exit code. wanted_s: the deadline asked about."""
    if wanted_s is not None:
        spec = replace(spec, deadline_s=wanted_s, deadline_in_s=None)
    answers = asyncio.run(_front(where).quotes(spec))
    quotes = {answer.pool.name: answer.quoted for answer in answers if answer.quoted is not None}
    order = [name for name in pools_in_order(quotes, spec) if quotes[name].earliest_deadline_s is not None]
    best = next((answer for answer in answers if order and answer.pool.name == order[0]), None)
    is_kept = best is not None and best.keeps_deadline
    if as_json:
        wanted = {} if wanted_s is None else {"deadline_s": wanted_s, "would_be_promised": is_kept}
        print_json({"pool": best and best.pool.name, **wanted, "pools": [_answer_as_json(each) for each in answers]})
        return 0 if is_kept else 1
    _show_answers(answers)
    if best is None or best.quoted is None or best.quoted.earliest_deadline_s is None:
        say_line("no quote: no pool knows how fast the job is, or has GPUs for it", "yellow")
    else:
        say_line(f"pool               {best.pool.name}")
        show_quote(best.quoted, best.quoted.earliest_deadline_s, options, wanted_s)
    return 0 if is_kept else 1


def show_pools_decision(chosen: PoolsDecision, options: SubmissionOptions) -> None:
    """What each pool has said, the pool that decided, and its decision with the commands for that pool."""
    if chosen.answers:
        _show_answers(chosen.answers)
    say_line(f"pool      {chosen.pool.name}")
    now_s, words = SystemClock().now_s(), _words(chosen.pool, options)
    show_decision(chosen.decision, options, now_s=now_s, earlier=chosen.earlier, where=words)


def pools_decision_as_json(chosen: PoolsDecision) -> dict[str, Any]:
    """The decision, as of one pool, with the pool and the answers of all."""
    return {
        **decision_as_json(chosen.decision),
        "pool": chosen.pool.name,
        "pools": [_answer_as_json(answer) for answer in chosen.answers],
    }


def _front(where: SeveralPoolsOptions) -> PoolFront:
    pools = named_pools(where.pools, nats_url=where.nats_url, data_dir=where.data_dir)
    return PoolFront(pools=pools, tenant=where.tenant)


def _say_undecided(event: ProfileRequested) -> None:
    note(f"{event.job_id}: {undecided_in_words(event)} ...")


def _words(pool: NamedPool, options: SubmissionOptions) -> tuple[str, ...]:
    """The options that name the pool and the tenant to other commands, as the user typed them."""
    typed = dict(zip(options.where[::2], options.where[1::2], strict=True))
    of_server = ("--nats-url", "--data-dir") if pool.words[0] == "--pool" else ()
    return (*(word for name in (*of_server, "--tenant") if name in typed for word in (name, typed[name])), *pool.words)


def _show_answers(answers: tuple[PoolAnswer, ...]) -> None:
    rows = ((answer.pool.name, *_quoted_cells(answer), _answer_word(answer)) for answer in answers)
    say(table("POOL", "EARLIEST DEADLINE", "GPU-SECONDS", "ANSWER", rows=rows, right=("GPU-SECONDS",)))


def _quoted_cells(answer: PoolAnswer) -> tuple[str, str]:
    quoted = answer.quoted
    if quoted is None or quoted.earliest_deadline_s is None:
        return "-", "-"
    needed = "-" if quoted.gpu_seconds is None else f"{quoted.gpu_seconds:.0f}"
    return moment_in_words(quoted.earliest_deadline_s, quoted.at_s), needed


def _answer_word(answer: PoolAnswer) -> Text:
    match answer.decision:
        case None:
            pass
        case JobAdmitted():
            return state_word("admitted")
        case JobRejected(explanation=why, earliest_deadline_s=later, at_s=at_s):
            offer = "" if later is None else f"; earliest in {duration_in_words(later - at_s)}"
            return Text(f"rejected: {why}{offer}", style="red")
        case decision:
            return Text(decision_as_json(decision)["decision"], style="red")
    if answer.problem:
        return Text(answer.problem, style="yellow")
    if answer.quoted is not None and answer.quoted.earliest_deadline_s is None:
        return Text(answer.quoted.explanation)
    return Text("would keep it" if answer.keeps_deadline else "too late")


def _answer_as_json(answer: PoolAnswer) -> dict[str, Any]:
    quoted, decision = answer.quoted, answer.decision
    return {
        "pool": answer.pool.name,
        "earliest_deadline_s": quoted and quoted.earliest_deadline_s,
        "gpu_seconds": quoted and quoted.gpu_seconds,
        "num_gpus": quoted and quoted.num_gpus,
        "would_be_promised": answer.keeps_deadline,
        "explanation": answer.problem or (quoted.explanation if quoted else ""),
        "decision": decision and decision_as_json(decision)["decision"],
    }
