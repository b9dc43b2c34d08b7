"""What each role may do on the bus of a pool: the subjects on which it may publish, and to which it may subscribe.

Tenants and nodes have accounts of their own. There, replies of the server stay in the account. In the pool's account a
request to JetStream may name any subject for its reply, the plan too, so only trusted processes are in it (decision
record 0056).
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from elasticflow.shared.messages import subjects
from elasticflow.shared.runtime.bus import streams
from elasticflow.shared.runtime.bus.nats.connection import API_OF_POOL
from elasticflow.shared.runtime.bus.streams import StreamLimits, stream_configs

_INBOXES = "_INBOX.>"
_REPLIES_TO_OTHER_ACCOUNTS = "_R_.>"


class Role(StrEnum):
    """Who a key belongs to. A service is admission, allocator, placement or monitor."""

    OPERATOR = "operator"
    SERVICE = "service"
    NODE = "node"
    TENANT = "tenant"


IN_POOL_ACCOUNT = frozenset({Role.OPERATOR, Role.SERVICE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Permissions:
    """Subjects, with wildcards. In an account of its own a role imports exactly these from the pool's account.

    to_nodes, from_nodes: between its account and those of nodes: a server passes no message on twice.
    """

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    to_nodes: tuple[str, ...] = ()
    from_nodes: tuple[str, ...] = ()


def permissions(role: Role, pool: str, name: str) -> Permissions:
    """name: of the tenant or node; two operators, or two services, may do the same."""
    return _PERMISSIONS[role](pool, name)


def _operator(pool: str, name: str) -> Permissions:
    return Permissions(publish=(">",), subscribe=(">",))


def _service(pool: str, name: str) -> Permissions:
    ledger, submit = streams.ledger_stream(pool), streams.submit_stream(pool)
    tasks, results = streams.padding_streams(pool)
    code, snapshots = streams.code_bucket(pool), streams.snapshot_bucket(pool)
    artifacts = streams.artifact_bucket(pool)
    views = streams.view_bucket(pool)
    return Permissions(
        publish=(
            streams.ledger_subjects(pool),
            streams.dead_letter_subjects(pool),
            streams.submit_subjects(pool),  # the monitor cancels loads that their clients have abandoned
            subjects.answer("*", pool, "*"),
            streams.value_subject(streams.state_bucket(pool), ">"),
            streams.value_subject(streams.node_bucket(pool), "*"),
            streams.value_subject(views, ">"),
            f"$JS.API.DIRECT.GET.KV_{views}.>",
            f"$O.{snapshots}.>",
            "$JS.API.INFO",
            *_api("STREAM.INFO", *_every_stream(pool)),
            *_api("STREAM.MSG.GET", *_every_stream(pool)),
            *_api("STREAM.PURGE", tasks, results, f"OBJ_{snapshots}", f"OBJ_{code}", f"OBJ_{artifacts}"),
            f"$JS.API.DIRECT.GET.OBJ_{snapshots}",
            f"$JS.API.DIRECT.GET.OBJ_{snapshots}.>",
            *_api("CONSUMER.CREATE", ledger, results),
            *(f"$JS.API.CONSUMER.{call}.{stream}.*" for call in ("CREATE", "MSG.NEXT") for stream in (submit,)),
            f"$JS.API.CONSUMER.CREATE.{tasks}.*",
            f"$JS.API.CONSUMER.DELETE.{tasks}.*",
            f"$JS.ACK.{submit}.>",
            f"$JS.FC.{ledger}.>",
            f"$JS.FC.{results}.>",
            _INBOXES,
            _REPLIES_TO_OTHER_ACCOUNTS,
        ),
        subscribe=(_INBOXES, subjects.quote("*", pool), subjects.every_node(pool)),
    )


def _node(pool: str, node_id: str) -> Permissions:
    """A node may do nothing with padding loads: else it could forge the results of any load.

    Padding loads work in pools with a token only.
    """
    code, snapshots = streams.code_bucket(pool), streams.snapshot_bucket(pool)
    nodes, artifacts = streams.node_bucket(pool), streams.artifact_bucket(pool)
    logs = streams.value_subject(streams.log_bucket(pool), streams.log_key("*", node_id, "*", "*"))
    return Permissions(
        publish=(
            subjects.node(pool, node_id),
            streams.value_subject(nodes, node_id),
            subjects.job(pool, "*", node_id),
            f"$O.{artifacts}.C.*.{node_id}.*",
            f"$O.{artifacts}.M.*.{node_id}.*",
            f"$JS.API.DIRECT.GET.OBJ_{artifacts}.$O.{artifacts}.M.*.{node_id}.*",
            logs,
            f"$JS.API.DIRECT.GET.KV_{streams.log_bucket(pool)}.{logs}",
            subjects.reached("*", pool, node_id, "*"),
            *_api("STREAM.INFO", *_every_stream(pool)),
            *_api("STREAM.MSG.GET", f"KV_{nodes}", f"OBJ_{code}", f"OBJ_{snapshots}"),
            *_api("DIRECT.GET", streams.ledger_stream(pool), f"OBJ_{code}", f"OBJ_{snapshots}"),
        ),
        subscribe=(streams.ledger_subjects(pool), subjects.reach("*", pool, node_id)),
    )


def _tenant(pool: str, tenant: str) -> Permissions:
    """It reads its own view, not the ledger: single keys by subject, since a request with a stream alone reads all."""
    code, artifacts = streams.code_bucket(pool), streams.artifact_bucket(pool)
    logs, views = streams.log_bucket(pool), streams.view_bucket(pool)
    own_logs = streams.value_subject(logs, streams.log_key(tenant, "*", "*", "*"))
    own_views = tuple(
        streams.value_subject(views, key) for key in (streams.tenant_view_key(tenant), streams.history_key(tenant, "*"))
    )
    common_views = tuple(streams.value_subject(views, key) for key in (streams.AS_OF_KEY, streams.POOL_VIEW_KEY))
    return Permissions(
        publish=(
            subjects.submit(tenant, pool),
            subjects.quote(tenant, pool),
            f"$O.{code}.C.{tenant}.*",
            f"$O.{code}.M.{tenant}.*",
            f"$JS.API.DIRECT.GET.OBJ_{code}.$O.{code}.M.{tenant}.*",
            *(f"$JS.API.DIRECT.GET.OBJ_{artifacts}.$O.{artifacts}.{part}.{tenant}.*.*" for part in ("C", "M")),
            f"$JS.API.DIRECT.GET.KV_{logs}.{own_logs}",
            *(f"$JS.API.DIRECT.GET.KV_{views}.{key}" for key in (*common_views, *own_views)),
        ),
        subscribe=(subjects.answer(tenant, pool, "*"), *own_views),
        to_nodes=(subjects.reach(tenant, pool, "*"),),
        from_nodes=(subjects.reached(tenant, pool, "*", "*"),),
    )


def _api(call: str, *stream_names: str) -> tuple[str, ...]:
    return tuple(f"$JS.API.{call}.{name}" for name in stream_names)


def _every_stream(pool: str) -> tuple[str, ...]:
    return tuple(config["name"] for config in stream_configs(pool, StreamLimits()))


_PERMISSIONS: Mapping[Role, Callable[[str, str], Permissions]] = MappingProxyType(
    {Role.OPERATOR: _operator, Role.SERVICE: _service, Role.NODE: _node, Role.TENANT: _tenant}
)


# --- The accounts of a pool's keys, as a part of the configuration of a NATS server --------------------
# It holds public keys only. A NATS string is a JSON string.

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
    tenants, nodes = (
        {users[0].name: name for name, users in accounts.items() if users[0].role is role}
        for role in (Role.TENANT, Role.NODE)
    )
    for name, keys_of_account in accounts.items():
        users = [_user(key, _with_inboxes(allowed[name])) for key in keys_of_account]
        exports, imports = _between_tenants_and_nodes(pool, keys_of_account[0], tenants, nodes)
        imports = [*_imports(allowed[name], pool_account), *imports]
        blocks.append(_block(name, users=users, exports=exports, imports=imports))
    return "\n".join(("accounts {", *blocks, "}")) + "\n"


def _between_tenants_and_nodes(
    pool: str, key: PublicKey, tenants: Mapping[str, str], nodes: Mapping[str, str]
) -> tuple[list[str], list[str]]:
    """What the account of this key exports to the other kind, and imports from it. tenants, nodes: accounts by name."""
    if key.role is Role.TENANT:
        others = list(nodes.values())
        exported = subjects.reach(key.name, pool, "*")
        imported = {account: subjects.reached(key.name, pool, node_id, "*") for node_id, account in nodes.items()}
    else:
        others = list(tenants.values())
        exported = subjects.reached("*", pool, key.name, "*")
        imported = {account: subjects.reach(tenant, pool, key.name) for tenant, account in tenants.items()}
    exports = [f"{{ stream: {_quoted(exported)}, accounts: {_quoted(others)} }}"] if others else []
    imports = (_stream_import(account, subject) for account, subject in imported.items())
    return exports, list(imports)


def _stream_import(account: str, subject: str) -> str:
    return f"{{ stream: {{ account: {_quoted(account)}, subject: {_quoted(subject)} }}, to: {_quoted(subject)} }}"


def _block(name: str, *lines: str, **lists: Iterable[str]) -> str:
    text = [f"  {_quoted(name)}: {{", *(f"    {line}" for line in lines)]
    for heading, items in lists.items():
        text += [f"    {heading}: [", *(f"      {item}" for item in items), "    ]"]
    return "\n".join((*text, "  }"))


def _with_inboxes(allowed: Permissions) -> Permissions:
    names = dict.fromkeys((*allowed.publish, *map(_name_in_account, allowed.publish), *allowed.to_nodes, _OWN_INBOXES))
    return Permissions(publish=tuple(names), subscribe=(*allowed.subscribe, *allowed.from_nodes, _OWN_INBOXES))


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
    for kind, patterns in (("service", allowed.publish), ("stream", allowed.subscribe)):
        for subject in patterns:
            here = _name_in_account(subject)
            yield f"{{ {kind}: {{ account: {_quoted(account)}, subject: {_quoted(subject)} }}, to: {_quoted(here)} }}"


def _name_in_account(subject: str) -> str:
    return f"{API_OF_POOL}.STREAM.{subject.removeprefix(_API_CALL)}" if subject.startswith(_API_CALL) else subject


def _quoted(value: object) -> str:
    return json.dumps(value)
