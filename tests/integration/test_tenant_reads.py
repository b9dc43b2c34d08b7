"""A client with the key of a tenant reads the view that the monitor's code has stored with the key of a service."""

from pathlib import Path

import pytest

from elasticflow.cli.watch import picture
from elasticflow.client.client import Client
from elasticflow.client.pool_endpoint import Endpoint
from elasticflow.client.tenant_view import STALE_AFTER_S
from elasticflow.errors import KeysUnusable, NoViews, UnknownJob
from elasticflow.history.pool_views import load_views
from elasticflow.services.monitor.tenant_views import NewHistories, ViewWriter
from elasticflow.shared.runtime.bus.nats.permissions import Role
from elasticflow.shared.state.pool import PoolState
from testbed.histories import NOW_S
from testbed.secured_pool import POOL, secured_pool
from tests.support.error_codes import coded
from tests.unit.services.monitor.test_tenant_views import FOLD, HandClock, fold, opened
from tests.unit.shared.state.test_tenant_view import shared_pool


async def test_a_tenant_reads_its_own_jobs_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = shared_pool().then(*(opened(f"fold-{tenant}", tenant) for tenant in ("acme", "globex")))
    async with secured_pool(tmp_path, (Role.TENANT, "acme"), (Role.TENANT, "globex")) as pool:
        monkeypatch.setenv("EF_NATS_CREDS", str(pool.keys.seed_file(Role.TENANT, "acme")))
        endpoint = Endpoint(nats_url=pool.url, pool=POOL)
        async with Client.connect(endpoint, tenant="acme") as client:
            with pytest.raises(NoViews):
                await client.state()
            async with pool.connected(Role.SERVICE, "services") as service:
                histories = NewHistories(PoolState(), 0)
                fold(histories, ledger.messages)
                await ViewWriter(service, POOL, HandClock(), histories, ()).round()
            state = await client.state()
            assert set(state.live_jobs) == {"line"}
            assert (state.sequence, state.num_gpus) == (ledger.state.sequence, 8)
            assert (await client.history("line"))[0].text.startswith("submitted by acme")
            assert await client.history("secret-project") == ()
            assert [view.load_id for view in load_views(state, NOW_S)] == ["fold-acme"]
            assert (await client.history("fold-acme"))[0].text.startswith("opened by acme: proteins:fold")
            assert await client.history("fold-globex") == ()
            with pytest.raises(KeysUnusable, check=coded("operators_only")):
                await anext(client.results_of([1], FOLD, load_id="another"))
            with pytest.raises(KeysUnusable, check=coded("operators_only")):
                await anext(client.stored_results("fold-acme"))
            with pytest.raises(UnknownJob):
                await client.job("secret-project")
            with pytest.raises(KeysUnusable, match="operator", check=coded("operators_only")):
                await client.last_sequence()
            assert picture(state, NOW_S, of_all=False).renderables
            assert client.view is not None
            assert client.view.notes(NOW_S + 1.0) == ()
            assert "as of" in client.view.notes(NOW_S + STALE_AFTER_S + 1.0)[0]
        async with Client.connect(endpoint, tenant="globex") as client:
            with pytest.raises(KeysUnusable, match="EF_TENANT", check=coded("wrong_tenant")):
                await client.state()
