"""What is done already: graphs replayed, regions compiled, kernels fused by an engine."""

from __future__ import annotations

from advisor.model.findings import Evidence
from advisor.units import counted, format_fraction
from analyzers.inferred import COMPILED
from analyzers.kernel_roles import Kernel, classify
from analyzers.rules.base import Match, Rule, note
from analyzers.subject import Subject

_FEW = 0.5
_COMPILERS = ("inductor", "xla", "tvm", "nvfuser", "tensorrt")
# Their fused kernels are what an eager program calls anyway: no sign that somebody fused it.
_FRAMEWORKS = ("pytorch", "cudnn", "miopen", "cublas", "cutlass", "cub", "onednn", "unknown")
# A trace records no ops of what a compiler made: that fuses much, and often leaves something.
_UNSEEN = (
    "a trace does not say what could still be fused there: `fusion-advisor profile --mode compile` "
    "of the model looks inside"
)
_IN_A_GRAPH = "as the other findings say: what the compiler left is searched in the captured graphs"


def find(subject: Subject) -> tuple[Match, ...]:
    """Notes: kernels that run inside graphs, and regions that a compiler or an engine fused."""
    if subject.trace is None or not len(subject.trace.kernels):
        return ()
    return (*_graphed(subject), *_fused(subject))


def _graphed(subject: Subject) -> tuple[Match, ...]:
    trace = subject.trace
    assert trace is not None
    launches = int((trace.launches["kind"] == "graph").sum())
    if not launches:
        return ()
    calls = trace.kernels["launch"].dropna().astype(int)
    inside = int((trace.launches["kind"].to_numpy()[calls] == "graph").sum())
    attributed = subject.metrics.get("attributed_time_fraction")
    share = attributed.value if attributed is not None else None
    replays = counted(launches, "graph launch", "graph launches")
    text = (
        f"{inside} of {len(trace.kernels)} kernels come from {replays}; their own "
        f"ops are unknown ({format_fraction(share)} of kernel time leads to an operator, of a "
        "replay to the one that launched it at most), so they are told by name only"
    )
    return (
        note(
            RULE.id,
            subject,
            identity="already-graphed",
            title=_graph_title(subject, inside),
            action="nothing for the launches, which a replay has few of"
            + ("" if subject.provenance == "exact" else f"; {_UNSEEN}"),
            evidence=(
                Evidence(
                    kind="host",
                    text=text,
                    values={"graph_launches": launches, "kernels_inside": inside},
                ),
            ),
        ),
    )


def _graph_title(subject: Subject, inside: int) -> str:
    """That graphs are replayed already, if they hold most kernels; whose graphs they are."""
    trace = subject.trace
    assert trace is not None
    kind = "HIP" if subject.on_amd else "CUDA"
    part = "Already" if inside > _FEW * len(trace.kernels) else "Partly"
    return f"{part} replayed as a {kind} graph"


def _fused(subject: Subject) -> tuple[Match, ...]:
    trace = subject.trace
    assert trace is not None
    regions = any(str(n).startswith(COMPILED) for n in trace.ops["name"].cat.categories)
    totals = trace.kernels.groupby("name", observed=True)["duration_ns"].sum()
    made = fused = fusible = 0
    for name, total in totals.items():
        kernel = classify(str(name))
        if kernel.role in ("gemm", "conv", "attention", "communication"):
            continue
        fusible += int(total)
        theirs = kernel.library in _COMPILERS or _engine_fuses(kernel)
        made += int(total) if theirs else 0
        fused += int(total) if theirs and kernel.fuses else 0
    if not fusible or (made < _FEW * fusible and not regions):
        return ()
    # A compiler also writes kernels of one op: a copy in another order, an activation alone.
    text = (
        f"{format_fraction(made / fusible)} of the time outside GEMM, convolution, attention and "
        "communication is in kernels that a compiler or an engine made, "
        f"{format_fraction(fused / fusible)} in those whose names say several ops"
    )
    return (
        note(
            RULE.id,
            subject,
            identity="already-fused",
            title=_made_title(made / fusible, fused / fusible),
            action=_IN_A_GRAPH if subject.provenance == "exact" else _UNSEEN,
            evidence=(
                Evidence(
                    kind="dataflow",
                    text=text,
                    values={"made_ns": made, "fused_ns": fused, "fusible_ns": fusible},
                ),
            ),
        ),
    )


def _made_title(made: float, fused: float) -> str:
    if fused >= _FEW:
        return "Already fused by a compiler or an engine"
    return "Already compiled" if made >= _FEW else "Partly compiled"


def _engine_fuses(kernel: Kernel) -> bool:
    """Whether the name of an engine's kernel proves that it computes several ops."""
    return bool(kernel.fuses) and kernel.library not in _FRAMEWORKS


RULE = Rule(
    id="already-done",
    title="Already graphed, already fused",
    explanation=(
        "Kernels inside a graph replay or a compiled region were put together by somebody who knew "
        "the program. A trace no longer shows their ops, so nothing is guessed about them and "
        "nothing is proposed."
    ),
    bad="advising to fuse the two norms of a block that Inductor compiled",
    good="saying that it is compiled",
    find=find,
)
