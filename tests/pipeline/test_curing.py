"""Which of the compiler's own kernels are changed, given what each way measures (scripted)."""

from __future__ import annotations

import gzip
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from dataclasses import replace as replaced
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import msgspec
import pytest
import torch
from torch._inductor.runtime.triton_heuristics import lookup_autotune_config
from torch.fx.experimental.proxy_tensor import make_fx

from advisor.apply.compiler.apart import Cut
from advisor.apply.compiler.cuts import CompiledKernel
from advisor.apply.compiler.generated import (
    GeneratedKernel,
    as_retuned,
    configs_of,
    kernels_of_code,
)
from advisor.apply.recipe import UNCHANGED, Recipe
from advisor.errors import IllegalFusionError, WorkloadError
from advisor.model.applied import Applied
from advisor.model.cures import Split
from advisor.pipeline.backend import SwapLog
from advisor.pipeline.budget import Budget
from advisor.pipeline.curing import Cured, cured
from advisor.pipeline.earlier import kept_before
from advisor.pipeline.kept import kept_recipe
from advisor.pipeline.measure import Bench, Variant
from advisor.pipeline.peers import Alone
from advisor.pipeline.search import NOT_TRIED, OF_RANKS, Search, unlimited
from advisor.pipeline.switch import Seen
from advisor.pipeline.trials import KEPT_BEFORE, Trial, trials_of
from advisor.pipeline.verdicts import action_verdicts
from advisor.store import RunStore
from tests.builders.run import sample_run
from tests.builders.run_plan import norm_plan
from tests.builders.run_report import report_of
from tests.pipeline.test_search import US, Scripted, quiet

ARCHIVE = Path(__file__).parents[2] / "sample_traces" / "overfusion" / "overfusion.tgz"
CODE = "code/compiled_softmax-65536-1024-bf16-persistentTrue.fused.py.gz"


def _seen() -> Seen:
    """A kernel whose activation three readers compute again, and a small one beside it."""

    def step(x: torch.Tensor) -> torch.Tensor:
        p = torch.sin(x) * 3
        return p[:, :-2] + p[:, 1:-1] + p[:, 2:]

    graph = make_fx(step)(torch.randn(8, 16)).graph
    names = tuple(node.name for node in graph.nodes if node.op == "call_function")
    kernels = (CompiledKernel("triton_poi_fused_big", names), CompiledKernel("small", ("other",)))
    return Seen(graph, kernels, ())


@dataclass
class Measured(Scripted):
    """A bench in which a step takes what its cuts say."""

    seen_graph: Seen = field(default_factory=_seen)
    tried: list[Recipe] = field(default_factory=list)
    breaks: Callable[[Recipe], bool] = lambda _: False

    def as_tried(self, recipe: Recipe) -> Variant:
        return self.trial(recipe)

    def seen(self, recipe: Recipe) -> tuple[Seen, ...]:
        return (self.seen_graph,)

    def kernel_times(self, variant: Variant) -> dict[str, int]:
        return {"triton_poi_fused_big": 900, "small": 5, "gemm": 100}

    def trial(self, recipe: Recipe) -> Variant:
        if self.breaks(recipe):
            raise WorkloadError("the step cannot be compiled with it", why="out of resources")
        self.tried.append(recipe)
        log = SwapLog(cuts=[Cut(split, ("p",)) for split in recipe.splits])
        return Variant(recipe.name(), lambda: None, list, len, recipe, log)


def _saving(gains: dict[str, int]) -> Callable[[Recipe], int]:
    """1 ms less what the words of the recipe's cuts save, µs."""

    def takes(recipe: Recipe) -> int:
        # What was cut once is not cut again.
        cuts = dict.fromkeys(split.words for split in recipe.splits)
        saved = [g for words in cuts for word, g in gains.items() if word in words]
        return 1_000 * US - sum(saved) * US

    return takes


def _bench(gains: dict[str, int]) -> Measured:
    return Measured(_saving(gains), _saving(gains))


def _unfused(bench: Measured, only: str = "") -> Cured:
    return cured(cast(Bench, bench), UNCHANGED, "unfuse", only=only, gpu=None, emit=quiet,
                 late=lambda: False)  # fmt: skip


def test_the_cut_that_saves_most_is_taken_and_all_are_measured() -> None:
    found = _unfused(_bench({"stored once": 100, "own": 40}))
    assert [split.words for split in found.splits] == [
        "mul is stored once, not computed for each of 3 readers"
    ]
    assert found.tried >= 2
    assert found.details == [
        "triton_poi_fused_big: mul is stored once, not computed for each of 3 readers; "
        "100 µs of GPU time less"
    ]


def test_nothing_is_cut_where_every_cut_loses() -> None:
    found = _unfused(_bench({"stored once": -20, "own": -300, "before": -30}))
    assert (found.splits, found.retuned) == ((), ())
    assert "stays, the best of" in found.details[0]
    assert "takes 20 µs more" in found.details[0]


def test_a_cut_that_cannot_be_compiled_costs_itself_alone() -> None:
    bench = _bench({"own": 40})
    bench.breaks = lambda recipe: any("stored once" in split.words for split in recipe.splits)
    assert "own" in _unfused(bench).splits[0].words


def test_small_kernels_are_looked_at_only_by_name() -> None:
    assert all("small" not in line for line in _unfused(_bench({})).details)
    with pytest.raises(IllegalFusionError, match="called 'small' can be cut"):
        _unfused(_bench({}), only="small")


def test_a_search_keeps_the_cuts_and_their_record_gives_them_again(tmp_path: Path) -> None:
    bench = _bench({"stored once": 100})
    (trial,) = trials_of(report_of(norm_plan(), "norm", "sample:x"), ("unfuse:fused_big",))
    assert (trial.action, trial.kernel) == ("unfuse", "fused_big")
    search = Search(cast(Bench, bench), {}, [trial], Path(), quiet, unlimited())
    best, result = search.run()
    assert (result.verdict, result.actions) == ("kept", ("unfuse",))
    assert best is not None
    assert len(best.recipe.splits) == 1
    (verdict,) = action_verdicts([trial], result)
    assert verdict.splits == best.recipe.splits
    assert "100 µs of GPU time less" in verdict.details[0]
    run = sample_run(RunStore(tmp_path), applied=False)
    applied = Applied(created="now", device="a GPU", versions={}, plans=(), actions=(verdict,),
                      set=result)  # fmt: skip
    run.write_applied(applied)
    assert kept_recipe(run) == best.recipe
    (again,) = kept_before(run.applied())
    assert again.splits == best.recipe.splits


def _kept_before(bench: Measured) -> Trial:
    """A cut of one kernel that was asked for by name and kept, as the next application has it."""
    trial = Trial("unfuse:big", action="unfuse", kernel="big")
    _, result = Search(cast(Bench, bench), {}, [trial], Path(), quiet, unlimited()).run()
    verdicts = action_verdicts([trial], result)
    (kept,) = kept_before(
        Applied(created="now", device="a GPU", versions={}, plans=(), actions=verdicts, set=result)
    )
    assert (kept.finding, kept.kernel, len(kept.splits)) == (KEPT_BEFORE, "big", 1)
    return kept


@pytest.mark.parametrize("own_us", [40, -300])
def test_what_a_finding_calls_for_is_tried_beside_what_was_kept(own_us: int) -> None:
    """It was left for the one kernel that was kept, and on record as done."""
    bench = _bench({"stored once": 100})
    kept = _kept_before(bench)
    bench = _bench({"stored once": 100, "own": own_us})
    first, more = replaced(kept), Trial("over-fusion-1", action="unfuse")
    search = Search(cast(Bench, bench), {}, [first, more], Path(), quiet, unlimited())
    best, result = search.run()
    assert more.judgement is not None
    assert more.pays == (own_us > 0)
    assert result.actions == ("unfuse",)
    (verdict,) = action_verdicts(search.trials, result)
    assert verdict.finding == "over-fusion-1", "all kernels were looked at"
    assert best is not None
    assert verdict.splits == best.recipe.splits
    assert verdict.splits[:1] == kept.splits
    assert len(verdict.splits) == 1 + (own_us > 0)
    assert verdict.step is not None
    assert verdict.step.gain_mid_ns == (100 + max(own_us, 0)) * US


def test_what_is_tried_beside_what_no_record_names_gives_it_a_name() -> None:
    """Else every later budget went to it again."""
    kept = _kept_before(_bench({"stored once": 100}))
    first, more = replaced(kept, kernel="", asked_by=None), Trial("over-fusion-1", action="unfuse")
    bench = _bench({"stored once": 100, "own": -300})
    search = Search(cast(Bench, bench), {}, [first, more], Path(), quiet, unlimited())
    _, result = search.run()
    (verdict,) = action_verdicts(search.trials, result)
    assert verdict.splits == kept.splits
    assert verdict.finding == "over-fusion-1"


def test_what_there_is_no_time_for_beside_what_was_kept_is_left_open() -> None:
    bench = _bench({"stored once": 100})
    kept, more = _kept_before(bench), Trial("over-fusion-1", action="unfuse")
    search = Search(cast(Bench, bench), {}, [kept, more], Path(), quiet, Budget(1.0, 0.0))
    _, result = search.run()
    assert result.actions == ("unfuse",)
    (verdict,) = action_verdicts(search.trials, result)
    assert verdict.finding == "unfuse:big"
    assert more.judgement is NOT_TRIED


def test_every_kernel_that_is_asked_for_by_name_is_looked_at() -> None:
    """The second was left out without a word."""
    trials = [Trial(f"unfuse:{k}", action="unfuse", kernel=k) for k in ("small", "big")]
    bench = _bench({"stored once": 100})
    search = Search(cast(Bench, bench), {}, trials, Path(), quiet, unlimited())
    _, result = search.run()
    assert result.actions == ("unfuse",)
    (verdict,) = action_verdicts(search.trials, result)
    assert len(verdict.splits) == 1
    assert verdict.finding == "unfuse:big"


def test_nothing_of_the_compiler_is_changed_in_jobs_of_several_ranks() -> None:
    trial = Trial("unfuse", action="unfuse")
    peers = SimpleNamespace(**{"rank": 0, "count": 2})
    peers.exchange = Alone().exchange
    search = Search(cast(Bench, _bench({})), {}, [trial], Path(), quiet, unlimited(), peers)
    search.run()
    assert trial.judgement is not None
    assert (trial.judgement.reason, trial.judgement.applies) == (OF_RANKS, False)


# --- other launches -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def softmax() -> GeneratedKernel:
    """A kernel that Inductor wrote on a GPU."""
    with tarfile.open(ARCHIVE) as archive:
        content = archive.extractfile(CODE)
        assert content is not None
        code = gzip.decompress(content.read()).decode()
    (kernel,) = kernels_of_code(code)
    return kernel


def test_inductor_takes_the_launch_that_a_kernel_of_its_text_is_given(
    softmax: GeneratedKernel,
) -> None:
    function = SimpleNamespace(src=softmax.text.split("@triton.jit\n")[1])
    hints = dict(softmax.size_hints)
    assert lookup_autotune_config(hints, function) is None
    chosen = next(c for c in configs_of(softmax) if c.num_warps == 8)
    with as_retuned([chosen]):
        found = lookup_autotune_config(hints, function)
        renamed = SimpleNamespace(src=function.src.replace(softmax.name, "triton_per_fused_other"))
        assert lookup_autotune_config(hints, renamed) is not None
        assert lookup_autotune_config({**hints, "x": 2}, function) is None
    assert found is not None
    assert (found.kwargs, found.num_warps, found.num_stages) == (chosen.blocks, 8, 1)
    assert lookup_autotune_config(hints, function) is None


def test_launches_are_data_within_the_kernels_loops(softmax: GeneratedKernel) -> None:
    assert softmax.heuristic == "persistent_reduction"
    configs = configs_of(softmax)
    assert len(configs) > 5
    for config in configs:
        config.check()
        assert msgspec.json.decode(msgspec.json.encode(config), type=type(config)) == config
        assert config.blocks["XBLOCK"] * 1_024 <= 64 * 32 * config.num_warps
    request = softmax.request(configs[0])
    assert request.constexprs["XBLOCK"] == configs[0].blocks["XBLOCK"]
    assert "XBLOCK" not in request.signature
    assert "in_ptr0" in request.aligned


def test_recipes_with_other_cuts_have_other_names() -> None:
    splits: Sequence[Split] = [
        Split(kernel="k", words="", groups=((letter * 24,), ("f" * 24,))) for letter in "ab"
    ]
    names = {UNCHANGED.with_cures((split,)).name() for split in splits}
    assert len(names | {UNCHANGED.name()}) == 3
