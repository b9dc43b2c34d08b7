"""The group that torch's reducer has on CPU slots: whoever waits in it for others can be left behind.

Beside the gradients, which go through a hook, the reducer tells the others two things by itself: its buckets, which it
makes anew after the first step, and at the end of each step which parameters were used, if it is to find that out.
"""
# pyright: reportPrivateImportUsage=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportIncompatibleMethodOverride=false
# (torch has more of this than it exports or describes)

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import _create_work_from_future

from services.executor.worker.groups import Group


class ReducerGroup(dist.ProcessGroup):
    """Another group's members, as far as torch's reducer needs them."""

    def __init__(self, group: Group) -> None:
        super().__init__(group.rank, group.size)
        self._group = group

    def broadcast(self, tensors: list[torch.Tensor], opts: dist.BroadcastOptions) -> dist.Work:
        """It has come when this returns: nobody can go on with half of it. Raises PeerLost, LeftBehind."""
        (tensor,) = tensors
        self._group.broadcast(tensor, source=opts.rootRank)
        done = torch.futures.Future[torch.Tensor]()
        done.set_result(tensor)
        return _create_work_from_future(done)

    def allreduce(self, tensors: list[torch.Tensor], opts: dist.AllreduceOptions) -> dist.Work:
        """The sum, as the group's own: it comes to an end when that is closed."""
        (tensor,) = tensors
        return _create_work_from_future(self._group.all_reduce(tensor))
