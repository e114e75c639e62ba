"""Products with what follows: which are worth a try by their prices, and what the others say."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace

import msgspec
import pytest

from advisor.hardware.calibration import default_calibration
from advisor.hardware.gpus import gpu_by_key
from advisor.model.findings import Finding
from advisor.model.graph import Graph, node_of
from analyzers.exposure import Situation
from analyzers.gemm_advice import FUSED_ALREADY, GemmAdvice, advise_gemms
from analyzers.gemm_programs import BIAS, gemm_programs
from analyzers.opportunities import PricedGraph, advise
from analyzers.prediction import PricedFlow
from analyzers.pricing import PriceList, Unit, compiled_prices, price_list
from analyzers.rules import gemm_epilogue, without_overlaps
from analyzers.rules.base import Match
from analyzers.subject import captured_subject
from tests.builders.graph import Sketch
from tests.builders.trace import Timeline

GPU = gpu_by_key("h200")
SITUATION = Situation(GPU, default_calibration(GPU), False, step_ns=10**6, busy_ns=10**6)
ROWS, DEPTH, COLUMNS = 2048, 768, 3072
PRODUCT, FOLLOWS = 17_500, 8_000
MM = "aten.mm.default"


def multiplied(
    rows: int = ROWS, depth: int = DEPTH, columns: int = COLUMNS, **attributes: object
) -> tuple[Graph, str, str]:
    """(a graph of gelu-like ops on a product, the product's node, the last op's)."""
    s = Sketch()
    x = s.input(rows, depth, dtype="bfloat16")
    w = s.input(depth, columns, dtype="bfloat16", strides=(1, depth))
    y = s.op("opaque", x, w, shape=(rows, columns), target=MM, label=MM)
    wide = s.op("cast", y, dtype="float32", label="aten.gelu.default")
    grown = s.op("tanh", wide, label="aten.gelu.default")
    back = s.op("cast", grown, dtype="bfloat16", label="aten.gelu.default")
    graph = s.build(back)
    return graph, node_of(y)[0], node_of(back)[0]


def after(graph: Graph) -> frozenset[str]:
    return frozenset(node.id for node in graph.nodes if node.op in ("cast", "tanh"))


def prices_of(graph: Graph, product: str, product_ns: int, follows_ns: int) -> PriceList:
    """A compiled graph: one kernel of what follows, the library's recorded beside it."""
    follows = Unit("triton_poi_fused_gelu", after(graph), follows_ns, 1, (1,))
    held = price_list([follows], fused=True)
    own = Unit("aten::mm", frozenset((product,)), product_ns, 1, (0,))
    return replace(held, products={product: own})


def advised(graph: Graph, prices: PriceList) -> GemmAdvice:
    flow = PricedGraph(graph).flow
    return advise_gemms([(PricedFlow(flow, prices, graph.phase), frozenset())], SITUATION)


def test_a_bargain_says_both_sides() -> None:
    graph, product, _ = multiplied()
    found = advised(graph, prices_of(graph, product, PRODUCT, FOLLOWS))
    (item,) = found.plans
    assert found.left == ()
    assert item.worth.product.mid == PRODUCT
    assert item.worth.follows.mid == FOLLOWS
    saving = item.worth.saving
    # The library's speed may cost more than what goes; nothing is saved beyond what goes.
    assert saving.low < 0 < saving.mid < saving.high <= FOLLOWS
    prediction = item.plan.prediction
    assert prediction is not None
    assert prediction.basis.startswith("modelled")
    assert prediction.before_ns.mid == PRODUCT + FOLLOWS
    # A write and a read of the product go, in bfloat16.
    assert prediction.bytes_before - prediction.bytes_after >= 2 * 2 * ROWS * COLUMNS


@pytest.mark.parametrize(
    ("depth", "product_ns", "follows_ns", "raised"),
    [(768, 17_500, 8_000, True), (8192, 170_000, 8_000, True), (32_768, 640_000, 8_000, False),
     (8192, 170_000, 2_000, False)],
)  # fmt: skip
def test_deep_products_with_little_behind_them_stay(
    depth: int, product_ns: int, follows_ns: int, *, raised: bool
) -> None:
    graph, product, _ = multiplied(depth=depth)
    found = advised(graph, prices_of(graph, product, product_ns, follows_ns))
    assert bool(found.plans) == raised
    if not raised:
        (left,) = found.left
        assert left.node == product
        assert "at best" in left.why
        assert left.sizes.endswith(f"depth {depth:,}")


def test_a_library_far_from_the_roofline_may_be_beaten_by_far() -> None:
    graph, product, _ = multiplied()
    near = advised(graph, prices_of(graph, product, PRODUCT, FOLLOWS)).plans[0]
    far = advised(graph, prices_of(graph, product, 10 * PRODUCT, FOLLOWS)).plans[0]
    assert near.share.best < 1 < far.share.best
    assert far.worth.saving.high > FOLLOWS


def test_few_tiles_leave_the_gpu_idle_where_a_library_splits_the_depth() -> None:
    graph, product, _ = multiplied(rows=16, columns=1024, depth=4096)
    (left,) = advised(graph, prices_of(graph, product, 4_500, 2_000)).left
    assert "at best 2" in left.why
    graph, product, _ = multiplied(rows=1024, columns=1024, depth=4096)
    (item,) = advised(graph, prices_of(graph, product, 17_000, 4_000)).plans
    assert item.share.usual == 0.7


def test_a_depth_that_nobody_splits_costs_no_speed_beside_the_library() -> None:
    graph, product, _ = multiplied(rows=8, columns=64, depth=64)
    (item,) = advised(graph, prices_of(graph, product, 2_000, 2_000)).plans
    assert (item.share.least, item.share.usual, item.share.best) == (0.6, 0.7, 0.98)


def test_nothing_is_proposed_where_a_template_has_it_already() -> None:
    graph, product, _ = multiplied()
    both = Unit("triton_tem_fused_gelu_mm_0", after(graph) | {product}, 20_000, 1)
    found = advised(graph, price_list([both], fused=True))
    assert found.plans == ()
    assert [item.why for item in found.left] == [FUSED_ALREADY]


def test_eager_adds_the_bias_in_the_product() -> None:
    """One op of eager, two nodes of the graph: its time counts once."""
    graph, product, _ = multiplied()
    first = next(node.id for node in graph.nodes if node.op == "cast")
    own = Unit("aten::addmm", frozenset((product, first)), PRODUCT, 1)
    rest = Unit("aten::gelu", after(graph) - {first}, FOLLOWS, 1)
    (item,) = advised(graph, price_list([own, rest])).plans
    assert item.worth.product.mid + item.worth.follows.mid == PRODUCT + FOLLOWS


def test_without_a_recording_the_product_is_modelled_at_a_librarys_rate() -> None:
    graph, _, _ = multiplied()
    (item,) = advised(graph, price_list(())).plans
    flops = 2 * ROWS * DEPTH * COLUMNS
    fastest = flops / (GPU.bfloat16_flops or 1) * 1e9
    product = item.worth.product
    assert fastest < product.low < product.mid < product.high < 10 * fastest


def test_what_others_take_is_no_epilogue() -> None:
    graph, product, _ = multiplied()
    prices = prices_of(graph, product, PRODUCT, FOLLOWS)
    facts = PricedFlow(PricedGraph(graph).flow, prices, graph.phase)
    assert advise_gemms([(facts, after(graph))], SITUATION) == GemmAdvice()


# --- the rule -------------------------------------------------------------------------------------


def found_in(graph: Graph, prices: PriceList) -> tuple[Match, ...]:
    priced = [PricedGraph(graph, prices)]
    advice = advise(priced, SITUATION)
    return gemm_epilogue.find(captured_subject(priced, advice, SITUATION, {}, None))


def test_the_finding_names_its_plan_and_what_must_be_kept() -> None:
    graph, product, _ = multiplied()
    (match,) = found_in(graph, prices_of(graph, product, PRODUCT, FOLLOWS))
    finding = match.finding
    finding.check()
    assert finding.plan_id is not None
    assert finding.alternatives[0].plan_ids == (finding.plan_id,)
    assert [member.name for member in finding.members] == ["aten::mm", "triton_poi_fused_gelu"]
    (time,) = [item for item in finding.evidence if item.kind == "time"]
    assert time.values["share_to_keep"] == pytest.approx(PRODUCT / (PRODUCT + FOLLOWS))
    # Nothing is lost by trying it: what loses is taken out.
    assert match.change is not None
    assert match.change.saved_ns.low == 0
    assert match.change.rows == {0, 1}


def test_what_is_sure_stands_before_the_bet() -> None:
    graph, product, _ = multiplied()
    (bet,) = found_in(graph, prices_of(graph, product, PRODUCT, FOLLOWS))
    sure = replace(bet, bet=False, route="compile_region")
    named = replace(sure, finding=_as_other(sure))
    (kept,) = without_overlaps([bet, named])
    assert kept.id == "sure"
    assert [way.plan_ids for way in kept.alternatives if way.plan_ids][-1:] == [
        (bet.finding.plan_id,)
    ]


def _as_other(match: Match) -> Finding:
    return msgspec.structs.replace(match.finding, id="sure", plan_id=None, alternatives=())


def test_what_will_rather_lose_is_tried_by_whoever_asks_for_it() -> None:
    graph, product, _ = multiplied(depth=8192)
    prices = prices_of(graph, product, 170_000, FOLLOWS)
    (item,) = advised(graph, prices).plans
    assert not item.likely
    (match,) = found_in(graph, prices)
    assert match.finding.kind == "note"
    text = match.finding.evidence[0].text
    assert "expected to lose" in text
    assert f"apply --only {item.plan.id}" in text


def of_two_sizes() -> Graph:
    """The same ops behind a wide product and behind one of few tiles."""
    s = Sketch()
    last = []
    for rows, depth, columns in ((2048, 2048, 2048), (1024, 512, 256)):
        x = s.input(rows, depth, dtype="bfloat16")
        w = s.input(depth, columns, dtype="bfloat16", strides=(1, depth))
        y = s.op("opaque", x, w, shape=(rows, columns), target=MM, label=MM)
        last.append(s.op("add", y, s.input(rows, columns, dtype="bfloat16")))
    return s.build(*last)


def test_figures_of_what_will_rather_lose_add_up() -> None:
    """Saved: what follows + product - product / share - what is read besides; of all sizes."""
    (item,) = advise([PricedGraph(of_two_sizes())], SITUATION).gemms.plans
    assert len(item.plan.sites) == 2
    worth = item.worth
    product = worth.product.mid
    kept = worth.follows.mid + product - product / item.share.usual - worth.besides_ns
    assert worth.saving.mid == pytest.approx(kept, abs=3)
    assert worth.besides_ns > 0


def test_a_note_on_several_sizes_says_so() -> None:
    (match,) = found_in(of_two_sizes(), price_list([], fused=False))
    (why,) = [item.text for item in match.finding.evidence if "depth" in item.text]
    assert why.startswith("2 products (1,024 × 256, depth 512 and 1 other size): expected to lose ")
    assert "more for what it reads and writes besides" in why


def test_those_that_stay_are_one_note() -> None:
    graph, product, _ = multiplied(depth=32_768)
    (match,) = found_in(graph, prices_of(graph, product, 640_000, FOLLOWS))
    assert match.finding.kind == "note"
    assert match.finding.title == "1 matrix product with what follows left to the library"
    assert "depth 32,768" in match.finding.evidence[0].text
    match.finding.check()


# --- recorded products of compiled graphs ---------------------------------------------------------


@pytest.mark.parametrize("result", [True, False])
def test_a_compiled_graph_gives_its_products_their_results(*, result: bool) -> None:
    graph, product, _ = multiplied(64, 32, 48)
    line = Timeline()
    shapes = [[64, 32], [32, 48], *([[64, 48]] if result else [])]
    line.range("ProfilerStep#0", 0, 99)
    kinds = json.dumps(["c10::BFloat16"] * len(shapes))
    line.op("aten::mm", 1, 5, input_shapes=json.dumps(shapes), input_dtypes=kinds)
    line.kernel(10, 7, name="nvjet", correlation=line.launch(2))
    (prices,) = compiled_prices([(graph, ())], line.build())
    assert _times(prices.products) == {product: 7_000}


def _times(units: Mapping[str, Unit]) -> dict[str, int]:
    return {name: unit.time_ns for name, unit in units.items()}


def test_a_product_waits_for_no_communication_that_it_does_not_need() -> None:
    def grown(boundary: str | None) -> int:
        s = Sketch()
        x, w = s.input(64, 32), s.input(32, 48)
        other = s.op("opaque", s.input(64, 48), shape=(64, 48), target="c10d", boundary=boundary)
        y = s.op("opaque", x, w, shape=(64, 48), target="aten.mm.default")
        graph = s.build(s.op("add", s.op("tanh", y), other))
        (found,) = gemm_programs(PricedGraph(graph).flow, frozenset())
        assert found.program is not None
        return len(found.program.site.nodes)

    assert grown(None) == 3
    assert grown("communication") == 2


@pytest.mark.parametrize(
    ("added", "why"),
    [
        ((COLUMNS, "bfloat16"), BIAS),
        ((COLUMNS, "float32"), ""),  # the library's product adds what is of its type
        ((ROWS, COLUMNS, "bfloat16"), ""),
        (1.0, ""),
    ],
    ids=str,
)
def test_a_bias_alone_is_left_to_the_library(added: object, why: str) -> None:
    s = Sketch()
    x = s.input(ROWS, DEPTH, dtype="bfloat16")
    w = s.input(DEPTH, COLUMNS, dtype="bfloat16", strides=(1, DEPTH))
    target = "aten.mm.default"
    y = s.op("opaque", x, w, shape=(ROWS, COLUMNS), target=target, label=target)
    other = s.input(*added[:-1], dtype=added[-1]) if isinstance(added, tuple) else added
    dtype = "float32" if isinstance(added, tuple) and added[-1] == "float32" else "bfloat16"
    graph = s.build(s.op("add", y, other, dtype=dtype))
    (found,) = gemm_programs(PricedGraph(graph).flow, frozenset())
    assert (found.why, found.program is None) == (why, bool(why))
