"""What a product with what follows it in one kernel is worth: both sides of the bargain.

    saved = time of what follows  +  product by the library  -  the same product by a tile kernel
            -  what the tile kernel reads and writes besides

The first term is certain: the kernel of what follows goes, with a write and a read of the product.
The others are a bet: a generated product reaches a share of the library's speed that is not known
before it is measured, and the more of the step is the product, the more that share decides. So the
interval is wide, and its lower end mostly below zero. What other kernels' residuals teach says
nothing of that share, and is not applied.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from advisor.model.base import Range
from advisor.model.gemm import arithmetic_of, operands, product_flops, product_rows
from advisor.model.gemm_configs import gemm_configs, tiles_of
from advisor.model.guards import Prediction
from advisor.model.optable import item_bytes
from advisor.model.plan import FusionPlan, Site
from advisor.model.site_work import site_bytes
from analyzers.cost_model import kernel_time
from analyzers.exposure import Situation
from analyzers.prediction import PricedFlow
from analyzers.pricing import Price, Unit
from analyzers.program_cost import modelled_before, residual_time, sum_of

BASIS = "modelled: how fast a generated product is, is known once it is measured"


@dataclass(frozen=True)
class Share:
    """The speed of a generated product beside the library's: seldom less, usually, at best.

    Estimates, wide on purpose. For sm_9 an H200 says what is usual (`benchmarks/gemm_epilogue.md`:
    most rows reach 0.60 to 0.76, inputs cold; in models, where these were just written, up to 0.90
    was seen). The best is above all that: what is not tried is never known.
    """

    least: float
    usual: float
    best: float


# By the architecture's way of multiplying: the newer it is, the more of it only libraries use well
# (asynchronous copies of whole tiles, clusters, tensor memory).
_SHARES: dict[str, Share] = {
    "sm_8": Share(0.70, 0.90, 1.02),
    "sm_9": Share(0.60, 0.70, 0.98),
    "sm_10": Share(0.45, 0.65, 0.90),
    "sm_12": Share(0.60, 0.80, 1.00),
    "gfx": Share(0.45, 0.70, 0.95),
}
_OTHERS = Share(0.50, 0.75, 1.00)
# A library that takes this much longer than the roofline has no kernel that fits the sizes: there
# another tile may do much better.
_FAR, _MUCH_BETTER = 2.0, 0.6
# What a library's product reaches of the peak that a data sheet names.
LIBRARY_LEAST, LIBRARY_USUAL, LIBRARY_BEST = 0.50, 0.70, 0.85
# The least depth that a library gives a part of a product whose depth it splits (estimated).
SPLIT_DEPTH = 256
# What is read and written besides overlaps with the arithmetic: at best wholly.
_OVERLAPPED = 0.5


@dataclass(frozen=True)
class GemmPlace:
    """A site of a plan with the graph it is in."""

    facts: PricedFlow
    site: Site

    @property
    def product(self) -> str:
        """The node of the product."""
        return self.site.nodes[0]

    @property
    def after(self) -> tuple[str, ...]:
        """The nodes that follow it."""
        return self.site.nodes[1:]

    def unit(self) -> Unit | None:
        """The recorded kernels of the product alone, None where none are known."""
        prices = self.facts.prices
        own = prices.price(self.facts.flow, (self.product,)).units
        return own[0] if own else prices.products.get(self.product)

    def apart(self) -> tuple[str, ...]:
        """Those of the nodes that follow which the product's own kernel does not compute.

        Eager adds a bias in the product.
        """
        own = self.unit()
        return tuple(n for n in self.after if own is None or n not in own.nodes)

    def following(self) -> Price:
        """The present cost of what follows."""
        return self.facts.prices.price(self.facts.flow, self.apart())

    def is_fused(self) -> bool:
        """Whether a compiler's template computes the product and an op that follows already."""
        own = self.facts.prices.price(self.facts.flow, (self.product,)).units
        return self.facts.prices.fused and any(unit.nodes & {*self.after} for unit in own)


@dataclass(frozen=True)
class Worth:
    """What a place costs now and what one kernel would; savings by how well its product does."""

    product: Range
    follows: Range
    besides: Range
    saving: Range
    after: Range

    @property
    def besides_ns(self) -> int:
        """What is read and written besides, as far as it is expected to be seen."""
        return round(_OVERLAPPED * self.besides.mid)

    def plus(self, other: Worth) -> Worth:
        """Two places together."""
        return Worth(
            self.product.plus(other.product),
            self.follows.plus(other.follows),
            self.besides.plus(other.besides),
            self.saving.plus(other.saving),
            self.after.plus(other.after),
        )


def place_worth(plan: FusionPlan, place: GemmPlace, situation: Situation) -> Worth:
    """What one kernel saves at a site, in ns a step."""
    site = place.site
    product, follows = _product_time(plan, place, situation), _following(place, situation)
    besides = _besides(plan, site, situation)
    share = share_of(plan, site, product, situation)
    # The interval of the product's own time counts on both sides.
    after = Range(
        low=round(product.low / share.best),
        mid=round(product.mid / share.usual + _OVERLAPPED * besides.mid),
        high=round(product.high / share.least + besides.high),
    )
    saving = Range(
        low=follows.low + product.high - after.high,
        mid=follows.mid + product.mid - after.mid,
        high=follows.high + product.low - after.low,
    )
    return Worth(product, follows, besides, saving, after)


def share_of(plan: FusionPlan, site: Site, product: Range, situation: Situation) -> Share:
    """The speed of a generated product beside the library's on this GPU."""
    found = next(
        (share for start, share in _SHARES.items() if _is_of(situation.gpu.arch, start)), _OTHERS
    )
    # Few tiles leave multiprocessors idle, where a library splits the depth as well, if it is long.
    sm_count = situation.gpu.sm_count
    most = max(tiles_of(config, site) for config in gemm_configs(plan, site, sm_count))
    parts = max(site.row_sizes[-1] // SPLIT_DEPTH, 1)
    busy = min(most / min(most * parts, sm_count), 1.0)
    found = Share(found.least * busy, found.usual * busy, found.best * min(2 * busy, 1.0))
    executions = max(site.executions, 1e-9)
    if product.mid / executions > _FAR * roofline(plan, site, situation).high:
        return Share(found.least, found.usual, max(found.best, 1 / _MUCH_BETTER))
    return found


def shares_of(
    plan: FusionPlan, sites: Sequence[Site], products: Sequence[Range], situation: Situation
) -> Share:
    """The same of all sites of a plan together, by the time that the library takes for each."""
    each = [
        share_of(plan, site, product, situation)
        for site, product in zip(sites, products, strict=True)
    ]
    spent = [product.mid for product in products]

    def together(shares: Sequence[float]) -> float:
        slowed = sum(ns / share for ns, share in zip(spent, shares, strict=True))
        return sum(spent) / slowed if slowed else shares[0]

    return Share(
        together([share.least for share in each]),
        together([share.usual for share in each]),
        together([share.best for share in each]),
    )


def _is_of(arch: str, start: str) -> bool:
    """Whether `sm_90` is of `sm_9`: one digit more is a minor version, of AMD's any."""
    return arch.startswith(start) and (start == "gfx" or len(arch) == len(start) + 1)


def product_bytes(plan: FusionPlan, site: Site) -> int:
    """What the product by itself reads and writes once."""
    left, right = (item_bytes(i.dtype) for i in plan.inputs if i.name in operands(plan))
    rows, depth, columns = product_rows(site), site.row_sizes[-1], site.columns
    return left * (rows + columns) * depth + right * rows * columns


def roofline(plan: FusionPlan, site: Site, situation: Situation) -> Range:
    """The least time of a product by itself, one execution."""
    return kernel_time(
        situation.gpu,
        situation.calibration,
        bytes_moved=product_bytes(plan, site),
        flops=product_flops(site),
        dtype=arithmetic_of(plan),
    )


def _product_time(plan: FusionPlan, place: GemmPlace, situation: Situation) -> Range:
    """The library's product in a step: recorded, else the roofline at a library's usual rate."""
    unit, site = place.unit(), place.site
    if unit is not None:
        return Range(low=unit.time_ns, mid=unit.time_ns, high=unit.time_ns)
    least = roofline(plan, site, situation)
    if situation.calibration.matrix_flops.get(arithmetic_of(plan)):
        return least.scaled(site.executions)
    found = Range(
        low=round(least.mid / LIBRARY_BEST),
        mid=round(least.mid / LIBRARY_USUAL),
        high=round(least.mid / LIBRARY_LEAST),
    )
    return found.scaled(site.executions)


def _following(place: GemmPlace, situation: Situation) -> Range:
    """The kernels of what follows, less what they would still have to do for others."""
    price, gpu, calibration = place.following(), situation.gpu, situation.calibration
    flow = place.facts.flow
    modelled, _ = modelled_before(flow, place.apart(), gpu, calibration, only=price.unpriced)
    spent = Range(low=price.time_ns, mid=price.time_ns, high=price.time_ns)
    found = sum_of([spent, modelled])
    left = residual_time(flow, price.shared, frozenset(place.site.nodes), gpu, calibration)
    if left is None:
        return found
    return Range(low=found.low - left.high, mid=found.mid - left.mid, high=found.high - left.low)


def _besides(plan: FusionPlan, site: Site, situation: Situation) -> Range:
    """What the kernel moves beyond the product's traffic in a step, without launches of its own."""
    more = max(site_bytes(plan, site) - product_bytes(plan, site), 0)
    floor = situation.calibration.kernel_floor_ns
    cost = kernel_time(situation.gpu, situation.calibration, bytes_moved=more)
    high = max(cost.high - floor, 0)
    found = Range(low=0, mid=min(max(cost.mid - floor, 0), high), high=high)
    return found.scaled(site.executions)


def gemm_prediction(
    plan: FusionPlan, places: list[GemmPlace], worth: Worth, situation: Situation
) -> Prediction:
    """The prediction of a plan; the traffic that goes is a write and a read for each reader."""
    moved = 0
    for place in places:
        _, size = modelled_before(
            place.facts.flow,
            place.after,
            situation.gpu,
            situation.calibration,
            only=frozenset(),
        )
        moved += size + round(product_bytes(plan, place.site) * place.site.executions)
    after = round(sum(site_bytes(plan, p.site) * p.site.executions for p in places))
    return Prediction(
        before_ns=worth.product.plus(worth.follows),
        after_ns=worth.after,
        saving_ns=worth.saving,
        bytes_before=max(moved, after),
        bytes_after=after,
        basis=BASIS,
    )
