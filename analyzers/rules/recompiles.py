"""Functions that the compiler compiled again because a guard failed."""

from __future__ import annotations

import re

from advisor.model.compiler import Recompile
from advisor.model.findings import Evidence, finding_id
from advisor.units import counted
from analyzers.rules.base import Match, Rule, note
from analyzers.rules.graph_breaks import place_text
from analyzers.subject import Subject

_SIZE = re.compile(
    r"tensor '(?P<name>[^']+)' size mismatch at index (?P<axis>\d+)\. "
    r"expected (?P<was>\d+), actual (?P<now>\d+)"
)
_POSITION = re.compile(r"args\[(\d+)\]")
# What guards say, and what to change so that they hold.
_REMEDIES = (
    (r"stride mismatch", "give it tensors of one memory layout: .contiguous() before the call"),
    (r"dtype mismatch", "give it tensors of one dtype"),
    (r"requires_grad", "call it with gradients either needed or not, not both"),
    (r"grad_mode|inference_mode|GRAD_MODE", "call it under one grad mode, not under several"),
    (r"rank mismatch", "give it tensors with one number of axes"),
    (r"dispatch key|device", "give it tensors of one device and kind"),
    (
        r"___check_obj_id|___check_type_id|___as_tensor| is ",
        "pass the same object at every call: what is compared by identity is compiled anew",
    ),
    (
        r"==",
        "a Python value is compiled in as a constant: pass it as a tensor, or keep it the same",
    ),
)


def find(subject: Subject) -> tuple[Match, ...]:
    """A note for each guard that made the compiler start again."""
    found = subject.compiler.recompiles if subject.compiler is not None else ()
    return tuple(_match(subject, item) for item in found)


def _match(subject: Subject, item: Recompile) -> Match:
    place = place_text(item.location, item.function)
    return note(
        RULE.id,
        subject,
        identity=finding_id(RULE.id, f"{place} {item.guard}"),
        title=f"Compiled again: {place}",
        action=f"at {place}: {remedy(item.guard)}",
        evidence=(
            Evidence(
                kind="host",
                text=f"a guard failed ({counted(item.count, 'time')}): {item.guard}",
                values={"recompiles": item.count},
            ),
        ),
        locations=(item.location,),
    )


def remedy(guard: str) -> str:
    """What to change so that a guard holds."""
    size = _SIZE.search(guard)
    if size is not None:
        name, axis = size["name"], size["axis"]
        place = _POSITION.fullmatch(name)
        told = name if place is None else f"input {int(place[1]) + 1}"
        given = name if place is None else "that input"
        return (
            f"size {axis} of {told} changes ({size['was']}, then {size['now']}): "
            f"torch._dynamo.mark_dynamic({given}, {axis}) before the first call, or pad to one size"
        )
    for pattern, text in _REMEDIES:
        if re.search(pattern, guard):
            return text
    return "keep what this guard compares the same from call to call"


RULE = Rule(
    id="recompile",
    title="A function that is compiled more than once",
    explanation=(
        "Compiled code is guarded: shapes, dtypes, constants and objects that were seen while "
        "compiling must be the same at the next call, or the compiler starts again, for seconds. "
        "Each recompile names the guard that failed; past a limit the compiler gives up and the "
        "function runs eagerly."
    ),
    bad="compiled(x[:4]); compiled(x[:8])",
    good="torch._dynamo.mark_dynamic(x, 0) before the first call",
    find=find,
)
