"""The accounts of a pool's keys, as a part of the configuration of a NATS server.

It holds public keys only. A NATS string is a JSON string.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from elasticflow.shared.runtime.bus.nats.connection import API_OF_POOL
from elasticflow.shared.runtime.bus.nats.permissions import IN_POOL_ACCOUNT, Permissions, Role, permissions

_OWN_INBOXES = "_INBOX.>"
_API_CALL = "$JS.API.STREAM."  # NATS answers these itself in each account, so they need another name there
_MANY_ANSWERS = ("$JS.API.DIRECT.GET.", "$JS.API.CONSUMER.MSG.NEXT.")


@dataclass(frozen=True, slots=True, order=True)
class PublicKey:
    """A key that the server accepts. nkey: its public part, which starts with U."""

    role: Role
    name: str
    nkey: str


def server_configuration(pool: str, keys: Iterable[PublicKey]) -> str:
    """The text of the file that a server's configuration includes. Each tenant and node has one account."""
    inside: list[PublicKey] = []
    accounts: dict[str, list[PublicKey]] = {}
    for key in sorted(keys):
        if key.role in IN_POOL_ACCOUNT:
            inside.append(key)
        else:
            accounts.setdefault(f"{key.role}-{key.name}", []).append(key)
    allowed = {name: permissions(users[0].role, pool, users[0].name) for name, users in accounts.items()}
    pool_account = f"pool-{pool}"
    users = [_user(key, permissions(key.role, pool, key.name)) for key in inside]
    blocks = [_block(pool_account, "jetstream: enabled", users=users, exports=_exports(allowed))]
    for name, keys_of_account in accounts.items():
        users = [_user(key, _with_inboxes(allowed[name])) for key in keys_of_account]
        blocks.append(_block(name, users=users, imports=_imports(allowed[name], pool_account)))
    return "\n".join(("accounts {", *blocks, "}")) + "\n"


def _block(name: str, *lines: str, **lists: Iterable[str]) -> str:
    text = [f"  {_quoted(name)}: {{", *(f"    {line}" for line in lines)]
    for heading, items in lists.items():
        text += [f"    {heading}: [", *(f"      {item}" for item in items), "    ]"]
    return "\n".join((*text, "  }"))


def _with_inboxes(allowed: Permissions) -> Permissions:
    names = dict.fromkeys((*allowed.publish, *map(_name_in_account, allowed.publish), _OWN_INBOXES))
    return Permissions(publish=tuple(names), subscribe=(*allowed.subscribe, _OWN_INBOXES))


def _user(key: PublicKey, allowed: Permissions) -> str:
    subjects = {"publish": {"allow": allowed.publish}, "subscribe": {"allow": allowed.subscribe}}
    return f"{{ nkey: {key.nkey}, permissions: {_quoted(subjects)} }}  # {key.role} {key.name}"


def _exports(allowed: Mapping[str, Permissions]) -> Iterator[str]:
    """allowed: by account. Each subject is exported once, to all that may use it."""
    services, subscriptions = defaultdict[str, list[str]](list), defaultdict[str, list[str]](list)
    for account, its in allowed.items():
        for subject in its.publish:
            services[subject].append(account)
        for subject in its.subscribe:
            subscriptions[subject].append(account)
    for subject, accounts in services.items():
        answers = "stream" if subject.startswith(_MANY_ANSWERS) else "singleton"
        yield f"{{ service: {_quoted(subject)}, response_type: {answers}, accounts: {_quoted(accounts)} }}"
    for subject, accounts in subscriptions.items():
        yield f"{{ stream: {_quoted(subject)}, accounts: {_quoted(accounts)} }}"


def _imports(allowed: Permissions, account: str) -> Iterator[str]:
    for kind, subjects in (("service", allowed.publish), ("stream", allowed.subscribe)):
        for subject in subjects:
            here = _name_in_account(subject)
            yield f"{{ {kind}: {{ account: {_quoted(account)}, subject: {_quoted(subject)} }}, to: {_quoted(here)} }}"


def _name_in_account(subject: str) -> str:
    return f"{API_OF_POOL}.STREAM.{subject.removeprefix(_API_CALL)}" if subject.startswith(_API_CALL) else subject


def _quoted(value: object) -> str:
    return json.dumps(value)
