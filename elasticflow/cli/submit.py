"""`eflow submit`."""

from dataclasses import dataclass, replace
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json, SeveralPoolsOptions, run, run_at, where_words
from elasticflow.cli.decision_output import (
    SentJobs,
    decision_as_json,
    end_as_json,
    in_time,
    note_replaced,
    show_decision,
    show_end,
    telling_what_goes_on,
)
from elasticflow.cli.job_options import SubmissionOptions, seal_secrets
from elasticflow.cli.option_table import takes_tables
from elasticflow.cli.option_values import duration_of, parse_sweep
from elasticflow.cli.several_pools import (
    decided_by_pools,
    pools_decision_as_json,
    refuse_with_pools,
    show_pools_decision,
)
from elasticflow.cli.sweep import members_of, post_all, show_posted, submit_sweep
from elasticflow.cli.terminal_output import note, print_json, say_line
from elasticflow.client.client import Client
from elasticflow.client.replies import Decision
from elasticflow.errors import InvalidJob, NotEnded
from elasticflow.history.formatting import measured_in_words, undecided_in_words
from elasticflow.sdk.job_fields import absent_data, problems_of_names
from elasticflow.sdk.script import TorchrunScript
from elasticflow.sdk.submission import Submission, with_code
from elasticflow.shared.messages.events import JobAdmitted, ProfileRequested
from elasticflow.shared.runtime.process.clock import SystemClock
from elasticflow.shared.state.job import Job


@dataclass(frozen=True, slots=True, kw_only=True)
class SendingOptions:
    """The options of one submission, which are no options of its job."""

    again: Annotated[
        bool,
        typer.Option(
            "--again",
            help="With --name: take the name of any ended job. Default: a changed job takes that of a job that failed "
            "or was cancelled.",
        ),
    ] = False
    wait: Annotated[bool, typer.Option("--wait", help="Wait until the job has ended.")] = False
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="TIME", help="With --wait: the longest wait, like 90s, 10m. Default: none."),
    ] = ""
    detach: Annotated[
        bool,
        typer.Option(
            "--detach", "--no-wait", help="Do not wait for the decision. Rejections then have no counteroffers."
        ),
    ] = False


@takes_tables
def submit(
    context: typer.Context,
    options: SubmissionOptions,
    sending: SendingOptions = SendingOptions(),
    where: SeveralPoolsOptions = SeveralPoolsOptions(),
    as_json: Json = False,
) -> None:
    """Submit a job and print the decision: a promise, or a rejection with its
    reason and counteroffers.

    A file is packaged and uploaded; a module must be importable on the nodes.
    A job file has the same options in TOML. A sweep submits several jobs with
    one deadline, each admitted or rejected on its own. Exit code 1: a job is
    rejected; with --wait also failed, cancelled, or late.

    \b
    Examples:
      eflow submit train.py --deadline 10m
      eflow submit train.py:Digits --deadline 2026-05-01T18:00 --batch 256
      eflow submit train.py --class best-effort --set learning_rate=0.1
      eflow submit train.py --deadline 2h --name nightly-42 --wait --json
      eflow submit train.py --quote digits-3f9a1c
      eflow submit ddp.py --batch 64 --iterations 900 --deadline 5m -- --lr 0.1
      eflow submit old.py --torchrun --batch 256 --batch-per-worker 32 \\
        --iterations 900 --deadline 1h
      eflow submit job.toml
      eflow submit job.toml --deadline 2h --set learning_rate=0.1
      eflow submit train.py --deadline 2h --sweep learning_rate=0.1,0.01
      eflow submit train.py --deadline 2h --gpus 2..8
      eflow submit train.py --deadline 2h --gpu-type A100,V100
      eflow submit train.py --deadline 2h --gpu-memory 40GiB
      eflow submit src/train.py --workdir . --requirement requirements.txt \\
        --env WANDB_MODE=offline --secret WANDB_API_KEY --deadline 2h
      eflow submit train.py --deadline 2h --data train=s3://bucket/train \\
        --secret AWS_ACCESS_KEY_ID --secret AWS_SECRET_ACCESS_KEY
      eflow submit train.py --deadline 2h --name nightly-42 --pools a,b,c
      eflow submit train.py --deadline 2h --from digits-3f9a1c --iterations 900
    """
    sent = SentJobs()
    with telling_what_goes_on(sent):
        _submit(context, options, sending, where, sent, as_json=as_json)


def _submit(
    context: typer.Context,
    options: SubmissionOptions,
    sending: SendingOptions,
    where: SeveralPoolsOptions,
    sent: SentJobs,
    *,
    as_json: bool,
) -> None:
    name, quote_id = options.name, options.quote
    if quote_id and name:
        raise typer.BadParameter("the job gets the id of the quote; leave --name out", param_hint="--name")
    if name.startswith("-"):
        raise typer.BadParameter(
            f"other commands would read {name!r} as an option; begin with another character",
            param_hint="--name",
        )
    options = replace(options, where=where_words(context, where))
    if where.pools:
        refuse_with_pools(options, detach=sending.detach, again=sending.again)
    if sending.again and (options.sweep or not (name or quote_id)):
        raise typer.BadParameter("give the name of the one job that is run again with --name", param_hint="--again")
    options = replace(options, quote="")  # offers are taken without the quote
    options.checked(SystemClock().now_s())
    timeout_s, swept = duration_of(sending.timeout, "--timeout"), parse_sweep(options.sweep)
    job, code = options.load()
    job = options.apply(job)
    if isinstance(job, TorchrunScript) and (warning := job.warning()):
        note(f"warning: {warning}")
    if gone := absent_data(job.data_uris):
        note(f"warning: data: {', '.join(gone)} on this machine; the job needs it there on each node")
    if not where.pools:
        seal_secrets(job, options.secrets, where)
    if options.source and (swept or quote_id):
        raise typer.BadParameter("one job continues another one: neither a sweep nor a quote", param_hint="--from")
    if swept:
        if quote_id:
            raise typer.BadParameter("a quote is for one job", param_hint="--quote")
        if problems := problems_of_names(job_id=name, tenant=where.tenant):
            raise InvalidJob(*problems)
        members = members_of(job, code, swept, name=name, now_s=SystemClock().now_s())
        if sending.detach:
            run(lambda client: post_all(client, members, sent), where)
            show_posted(members, as_json=as_json)
            return
        raise typer.Exit(submit_sweep(members, where, sent, wait=sending.wait, timeout_s=timeout_s, as_json=as_json))
    if quote_id:
        reserved = run(lambda client: client.quote_reservation(quote_id), where)
        if not options.deadline:
            job.set_deadline(reserved.deadline_s)
    try:
        ready = with_code(job, code)
    except InvalidJob as error:  # one error names all problems
        raise InvalidJob(*error.problems, *problems_of_names(job_id=name, tenant=where.tenant)) from None
    if where.pools:
        raise typer.Exit(_submit_to_pools(ready, options, sending, where, sent, as_json=as_json))
    if options.source:
        continued = run(lambda client: client.continued(options.source), where)
        note(f"it begins from the checkpoint of iteration {continued.iteration} of {continued.job_id}")
        ready = replace(ready, spec=replace(ready.spec, continues=continued))
    name, again = name or quote_id, True if sending.again else None

    async def post(client: Client) -> str:
        client.on_sent, client.on_earlier = sent.append, note_earlier
        return await client.post(ready.spec, job_id=name, code=ready.code, again=again)

    earlier: list[Job] = []  # that of this name, if one was submitted before

    def note_earlier(job: Job, is_replaced: bool) -> None:
        earlier.append(job)
        note_replaced(job, is_replaced)

    def say_undecided(event: ProfileRequested) -> None:
        note(f"{event.job_id}: {undecided_in_words(event)} ...")

    async def submit_and_wait(client: Client) -> tuple[Decision, Job | None]:
        client.on_sent, client.on_earlier = sent.append, note_earlier
        client.on_warning = lambda warning: note(f"warning: {warning}")
        client.on_measured = lambda event: note(f"{event.job_id}: {measured_in_words(event)} ...")
        decision = await client.submit(
            ready.spec, job_id=name, code=ready.code, again=again, on_undecided=say_undecided
        )
        sent.decision = decision
        if not (sending.wait and isinstance(decision, JobAdmitted)):
            return decision, None
        if not as_json:
            show_decision(decision, options, now_s=client.now_s(), earlier=next(iter(earlier), None))
        try:
            return decision, await client.wait(decision.job_id, timeout=timeout_s)
        except NotEnded:
            if as_json:
                print_json(decision_as_json(decision))
            raise

    if sending.detach:
        job_id = run(post, where)
        print_json({"decision": "none yet", "job_id": job_id}) if as_json else say_line(f"submitted {job_id}")
        return
    decision, ended = run(submit_and_wait, where)
    if as_json:
        print_json(decision_as_json(decision) | ({"end": end_as_json(ended)} if ended else {}))
    elif ended is None:
        show_decision(decision, options, now_s=SystemClock().now_s(), earlier=next(iter(earlier), None))
    else:
        show_end(ended)
    good = isinstance(decision, JobAdmitted) and (ended is None or in_time(ended))
    raise typer.Exit(0 if good else 1)


def _submit_to_pools(
    ready: Submission,
    options: SubmissionOptions,
    sending: SendingOptions,
    where: SeveralPoolsOptions,
    sent: SentJobs,
    *,
    as_json: bool,
) -> int:
    """Submit to the best of several pools, and print the decision. Returns the exit code."""
    chosen, ended = decided_by_pools(ready, options, where, sent), None
    decision, timeout_s = chosen.decision, duration_of(sending.timeout, "--timeout")
    sent.decision = decision
    if not as_json:
        show_pools_decision(chosen, options)
    try:
        if sending.wait and isinstance(decision, JobAdmitted):
            job_id = decision.job_id
            ended = run_at(
                chosen.pool.endpoint, lambda client: client.wait(job_id, timeout=timeout_s), tenant=where.tenant
            )
            if not as_json:
                show_end(ended)
    finally:
        if as_json:
            print_json(pools_decision_as_json(chosen) | ({"end": end_as_json(ended)} if ended else {}))
    good = isinstance(decision, JobAdmitted) and (ended is None or in_time(ended))
    return 0 if good else 1
