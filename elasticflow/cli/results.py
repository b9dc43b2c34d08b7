"""`eflow results`: the stored results of a load that `eflow map --detach` has sent."""

from contextlib import closing
from typing import Annotated

import typer

from elasticflow.cli import completion
from elasticflow.cli.command_options import DataDir, NatsUrl, Pool, run_at
from elasticflow.cli.result_output import KeepGoing, Out, PickleDir, WithIndices, result_output
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import find_endpoint
from elasticflow.errors import UnknownLoad
from elasticflow.sdk.padding_results import ReceivedResults, in_order


def results(
    load_id: Annotated[str, typer.Argument(metavar="LOAD", autocompletion=completion.loads)],
    as_completed: Annotated[
        bool, typer.Option("--as-completed", help="Print in the order of their ends. Default: of the inputs.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Do not delete the results once all are printed.")] = False,
    out: Out = None,
    pickle_dir: PickleDir = None,
    keep_going: KeepGoing = False,
    nats_url: NatsUrl = "",
    pool: Pool = "",
    data_dir: DataDir = None,
    as_json: WithIndices = False,
) -> None:
    """Print the results of a detached load as lines of JSON, wait until it has
    ended, then delete them.

    Results are kept until an hour after the end of the load. Those of a
    cancelled load are deleted at once. Exit code 1 if a task failed, if
    results are missing, or while the `eflow map` of the load still runs.

    Results are unpickled here, which executes code of the load's tenant: read
    only loads that you trust, or take --pickle.

    \b
    Examples:
      eflow results fold-1
      eflow results fold-1 --as-completed --json --keep-going
      eflow results fold-1 --pickle results --keep
    """
    endpoint = find_endpoint(nats_url=nats_url, pool=pool, data_dir=data_dir)

    async def look(client: Client) -> int:
        load = (await client.state()).loads.get(load_id)
        if load is None:
            raise UnknownLoad(load_id, endpoint.pool)
        return load.num_tasks or 0

    num_tasks = run_at(endpoint, look)
    with (
        result_output(out, as_json=as_json, pickle_dir=pickle_dir, keep_going=keep_going) as output,
        closing(ReceivedResults(endpoint, "", load_id, lambda client: client.stored_results(load_id))) as stored,
    ):
        output.write_all(stored if as_completed else in_order(stored), stored.pickled_value_of, lambda: num_tasks)
    if not (keep or output.num_unprinted):
        run_at(endpoint, lambda client: client.delete_stored_results(load_id))
    raise typer.Exit(1 if output.num_failed else 0)
