"""`eflow keys`: who may do what in a pool. The keys are files in a folder of the operator."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from elasticflow.cli.command_options import Json
from elasticflow.cli.terminal_output import note, print_json, say, say_line
from elasticflow.client.pool_endpoint import DEFAULT_POOL
from elasticflow.history.tables import table
from elasticflow.local import key_store
from elasticflow.local.key_store import KeyStore
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.runtime.process.files import keep_token
from elasticflow.shared.runtime.process.secret_sealing import FILE_NAME, VARIABLE, kept_key

app = typer.Typer(rich_markup_mode="rich")

Folder = Annotated[
    Path,
    typer.Option("--keys", envvar="EF_KEYS_DIR", metavar="DIR", help="Folder of the keys. Default: eflow-keys."),
]
RoleOfKey = Annotated[Role, typer.Argument(metavar="ROLE", help="tenant, node, service or operator.")]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the tenant, EF_NODE_ID of the node, or any other name.")
]
_FOLDER = Path("eflow-keys")
_RELOAD = "nats-server --signal reload=PID"


@app.callback(invoke_without_command=True, no_args_is_help=True)
def keys() -> None:
    """Make a key for each tenant, node, service and operator, so that NATS
    permits each only its own subjects.

    \b
    Examples:
      eflow keys init --pool default
      eflow keys add tenant alice
      eflow keys add node gpu-7
      eflow keys revoke tenant alice
      eflow keys secrets
      eflow keys workers
    """


@app.command()
def init(
    pool: Annotated[
        str, typer.Option("--pool", envvar="EF_POOL", metavar="NAME", help="Pool of the keys. Default: default.")
    ] = DEFAULT_POOL,
    folder: Folder = _FOLDER,
    as_json: Json = False,
) -> None:
    """Make a folder with keys for the operator and the services, and the accounts
    that NATS servers include.
    """
    store = key_store.create(folder.absolute(), pool)
    if as_json:
        print_json(_content(store))
        return
    note(f"keep {store.folder} secret and save a copy; NATS servers need only this file of it:")
    say_line(f'include "{store.accounts_file}"')
    note("it replaces `authorization` in the configuration of each server; then, for the operator:")
    say_line(f"export EF_NATS_CREDS={_word(store.seed_file(Role.OPERATOR, 'operator'))} EF_POOL={pool}")
    note("and for admission, allocator, placement and monitor:")
    say_line(f"export EF_NATS_CREDS={_word(store.seed_file(Role.SERVICE, 'services'))} EF_POOL={pool}")


@app.command()
def add(role: RoleOfKey, name: Name, folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """Make one more key, and the accounts anew."""
    store = key_store.read(folder.absolute()).add(role, name)
    if as_json:
        print_json(_content(store))
        return
    own = {Role.TENANT: f" EF_TENANT={name}", Role.NODE: f" EF_NODE_ID={name}"}.get(role, "")
    note(f"send {store.accounts_file} to each NATS server, then run there twice: {_RELOAD}")
    note("(the first reload makes an account, the second what it imports)")
    if role is Role.NODE and store.workers_secret_file.exists():
        note(f"put {store.workers_secret_file.name} beside its key there: workers of all nodes know each other by it")
    note(f"give the {role} this file, by a way that no other person can read, and these variables:")
    say_line(f"export EF_NATS_CREDS={_word(store.seed_file(role, name))} EF_POOL={store.pool}{own}")


@app.command("secrets")
def make_secrets_key(folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """Make the key with which nodes read the secrets of jobs, or show its public
    half.
    """
    store = key_store.read(folder.absolute())
    public_key = kept_key(store.secrets_file)
    if as_json:
        print_json({"secrets_key": public_key, "file": str(store.secrets_file)})
        return
    note("put this into the pool's configuration, then run `eflow configure`:")
    say_line(f'secrets_key = "{public_key}"')
    note("give each node this file, by a way that no other person can read, and this variable:")
    say_line(f"export EF_SECRETS_KEY={_word(store.secrets_file)}")


@app.command("workers")
def make_workers_secret(
    folder: Folder = _FOLDER,
    data_dir: Annotated[
        Path | None,
        typer.Option("--data-dir", metavar="DIR", help="Make it in this data folder of a pool with a token instead."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make the secret by which workers of a job know each other, or say where it
    is. All nodes need the same one.
    """
    if data_dir is None:
        file = key_store.read(folder.absolute()).workers_secret_file
    else:
        file = data_dir.absolute() / FILE_NAME
    keep_token(file)
    if as_json:
        print_json({"file": str(file)})
    elif data_dir is None:
        note("put this file beside the key of each node, by a way that no other person can read, or set the variable:")
        say_line(f"export {VARIABLE}={_word(file)}")
    else:
        say_line(f"{file}: nodes with this data folder find it")


@app.command("list")
def list_keys(folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """List the keys that are valid, without their secrets."""
    store = key_store.read(folder.absolute())
    if as_json:
        print_json(_content(store))
    else:
        say(table("ROLE", "NAME", "PUBLIC KEY", rows=((key.role, key.name, key.nkey) for key in store.keys)))


@app.command()
def revoke(role: RoleOfKey, name: Name, folder: Folder = _FOLDER, as_json: Json = False) -> None:
    """Make a key invalid, and delete its file here. Jobs of a tenant go on."""
    store = key_store.read(folder.absolute()).revoke(role, name)
    if as_json:
        print_json(_content(store))
    else:
        note(f"send {store.accounts_file} to each NATS server, then run there: {_RELOAD}")
        say_line(f"revoked {role} {name}")


def _word(file: Path) -> str:
    """The file as a shell reads it."""
    return shlex.quote(str(file))


def _content(store: KeyStore) -> dict[str, object]:
    return {
        "pool": store.pool,
        "accounts_file": str(store.accounts_file),
        "keys": [asdict(key) | {"seed_file": str(store.seed_file(key.role, key.name))} for key in store.keys],
    }
