"""To which tenant a reply goes: an id does not tell, because several tenants may send commands about one job."""

from elasticflow.shared.messages.commands import id_of
from elasticflow.shared.state.pool import PoolState


def recipient(state: PoolState, reply: object) -> str:
    """The tenant that the reply names, else that of its job or load; "" if the state knows neither.

    Rejections name the tenant of their command. All other replies without a tenant are about a job of that tenant.
    """
    if tenant := getattr(reply, "tenant", ""):
        return tenant
    about = state.loads.get(id_of(reply)) if hasattr(reply, "load_id") else state.job(id_of(reply))
    return "" if about is None else about.tenant
