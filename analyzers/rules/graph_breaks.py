"""Where the compiler left the graph: nothing fuses across such a place."""

from __future__ import annotations

from advisor.model.base import Location
from advisor.model.compiler import GraphBreak
from advisor.model.findings import Evidence, finding_id
from advisor.units import counted
from analyzers.rules.base import Match, Rule, note
from analyzers.subject import Subject

# What Dynamo compiles in the place of a forward in a file that it does not trace.
_WRAPPER = "torch/_dynamo/external_utils.py"
_NO_HINT = "take the call out of the compiled function, or write it in ops that can be traced"
# Why PyTorch keeps the compiler out of an optimizer's step; its hint is for who wrote that.
_OPTIMIZER = "step not supported"
_OPTIMIZER_HINT = (
    "PyTorch runs the step of this optimizer uncompiled, with the closure that it calls: return "
    "(model, optimizer, loss) instead, or compile the model itself"
)


def find(subject: Subject) -> tuple[Match, ...]:
    """A note for each line at which the compiler left the graph; reasons of one line together."""
    if subject.compiler is None:
        return ()
    by_place: dict[tuple[str | None, int | None], list[GraphBreak]] = {}
    for item in subject.compiler.graph_breaks:
        by_place.setdefault((item.location.file, item.location.line), []).append(item)
    return tuple(_match(subject, breaks) for breaks in by_place.values())


def _match(subject: Subject, breaks: list[GraphBreak]) -> Match:
    first = breaks[0]
    place = place_text(first.location, first.function)
    hint = next((item.hint for item in breaks if item.hint), None)
    if any(_OPTIMIZER in item.reason for item in breaks):
        hint = _OPTIMIZER_HINT
    left = tuple(dict.fromkeys(name for item in breaks for name in item.left_to_eager))
    return note(
        RULE.id,
        subject,
        identity=finding_id(RULE.id, place),
        title=f"The compiler leaves {_what(left)} at {place}",
        action=f"at {place}: {hint or _NO_HINT}",
        evidence=tuple(
            Evidence(
                kind="legality",
                text=f"{item.reason} ({counted(item.count, 'time')} while compiling)",
                values={"breaks": item.count},
            )
            for item in breaks
        ),
        locations=(first.location,),
    )


def _what(left: tuple[str, ...]) -> str:
    """The graph, or the whole functions that it gives up."""
    if not left:
        return "the graph"
    more = f" and {counted(len(left) - 1, 'more function')}" if len(left) > 1 else ""
    return f"{left[0]}{more} to eager"


def place_text(location: Location, function: str | None) -> str:
    """`net.py:12 in forward`, as far as it is known.

    A compiled module whose forward is PyTorch's own (nn.Sequential, nn.Linear) has no line of the
    user's: Dynamo compiles a wrapper of its own.
    """
    place = location.file or "an unknown place"
    if place.endswith(_WRAPPER) and function == "inner":
        return "a compiled module whose forward is PyTorch's own, such as nn.Sequential"
    if location.line is not None:
        place += f":{location.line}"
    return f"{place} in {function}" if function else place


RULE = Rule(
    id="graph-break",
    title="A place where the compiler leaves the graph",
    explanation=(
        "What comes before a graph break and what comes after it are compiled apart: nothing fuses "
        "across it, tensors that live through it go through memory, and the step returns to Python "
        "there. A function that breaks where it cannot be taken up again, as within a loop, is not "
        "compiled at all, nor is one that calls it from a loop: nothing in them fuses. The "
        "compiler names the line and the reason."
    ),
    bad="if x.sum() > 0: x = x + 1",
    good="x = torch.where(x.sum() > 0, x + 1, x)",
    find=find,
)
