"""Who is a rank's site, and who are its counterparts at other sites."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from thinwire.errors import AttachError
from thinwire.exchange import Exchange, Group
from thinwire.exchange.council import Council


@dataclass(frozen=True)
class Grid:
    """Sites in rows, their members in columns: each rank is in one row and in one column."""

    between: Exchange
    """Ranks that hold the same shard as this one, one of every site."""
    inside: Group
    """Ranks of this one's site."""

    @cached_property
    def council(self) -> Council:
        """All ranks of all sites."""
        return Council(self.between, self.inside)

    @property
    def shard(self) -> str:
        """Which shard this rank holds, in words; empty where there is but one."""
        return f"shard {self.inside.rank} of {self.inside.size}" if self.inside.size > 1 else ""

    def check(self) -> None:
        """Refuse, on every rank, groups that do not make rows and columns."""
        places = [self.between.rank, self.between.size, self.inside.rank, self.inside.size]
        rows = self.council.everyone(places, "the grid of sites")
        for rank, (site, sites, member, members) in enumerate(rows):
            there = (rank // self.inside.size, self.between.size, rank % self.inside.size, self.inside.size)
            if (site, sites, member, members) != there:
                raise AttachError(
                    f"the groups make no grid of {self.between.size} sites with {self.inside.size} ranks each: a rank "
                    f"that should be member {there[2]} of site {there[0]} is member {member} of {members} of site "
                    f"{site} of {sites}. Make both from one mesh: init_device_mesh(device, (sites, members))"
                )

    @staticmethod
    def of_mesh(mesh: DeviceMesh, members: list[int]) -> Grid:
        """From a mesh of two dimensions, one of which joins these ranks as this rank's site."""
        if mesh.ndim != 2:
            raise AttachError(
                f"mesh must have two dimensions, sites and the ranks of a site, got {mesh.ndim}: "
                "init_device_mesh(device, (sites, members))"
            )
        groups: list[Any] = [mesh.get_group(dim) for dim in range(2)]
        ranks = [dist.get_process_group_ranks(group) for group in groups]
        inside = next((dim for dim in (1, 0) if sorted(ranks[dim]) == sorted(members)), None)
        if inside is None:
            raise AttachError(
                f"neither dimension of the mesh joins the ranks {members} among which the model is sharded: through "
                f"this rank they join {ranks[0]} and {ranks[1]}. Shard the model over one of them: "
                'fully_shard(module, mesh=mesh["shard"])'
            )
        return Grid(Group(groups[1 - inside]), Group(groups[inside]))
