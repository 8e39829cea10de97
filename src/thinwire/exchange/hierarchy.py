"""A hierarchy of links: ranks that are near each other average dense, and exchange by a rule with those far away."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True)
class Hierarchy:
    """`attach(ddp, rule, optimizer, exchange=Hierarchy(sites=2))`: W ranks on s sites, with m = W / s members each.

    Each member adds up a share of its site's gradients, exchanges that share by the rule with its counterparts at the
    other sites, and tells its own site the result:

        inside    2 (m - 1) / m · D bytes a rank, dense, as a ring all-reduce
        between   each rank the rule's message about D / m: a site sends what one rank would send of all of it

    A rank's memory covers its share: D / m. `sites=` takes ranks one behind the other: the first m are site 0. A mesh
    says it otherwise: its first dimension has the sites, its second the members of a site.

    >>> Hierarchy(sites=2).members(8)
    4
    >>> Hierarchy(sites=3).members(8)
    Traceback (most recent call last):
    thinwire.errors.ConfigError: 8 ranks make no 3 sites of equal size: use sites=2, sites=4 or sites=8
    """

    sites: int | None = None
    mesh: DeviceMesh | None = None

    def __post_init__(self) -> None:
        if (self.sites is None) == (self.mesh is None):
            raise ConfigError("Hierarchy takes either sites=, a number, or mesh=, of sites and their members")
        if self.sites is not None and self.sites < 1:
            raise ConfigError(f"sites must be at least 1, got {self.sites}; 2 for two sites")
        if self.mesh is not None and self.mesh.ndim != 2:
            raise ConfigError(f"the mesh must have two dimensions, sites and members of a site, got {self.mesh.ndim}")

    def members(self, ranks: int) -> int:
        """How many of so many ranks each site has."""
        sites = self.mesh.size(0) if self.mesh is not None else self.sites
        assert sites is not None
        if ranks % sites:
            fitting = [f"sites={each}" for each in range(2, ranks + 1) if ranks % each == 0]
            words = " or ".join([", ".join(fitting[:-1]), fitting[-1]] if len(fitting) > 1 else fitting)
            raise ConfigError(f"{ranks} ranks make no {sites} sites of equal size: use {words}")
        return ranks // sites
