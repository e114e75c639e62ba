"""A unified diff of source files whose forwards begin with a call of a kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from advisor.model.forward import Excerpt, WholeForward

CONTEXT = 3
ALIAS = "fusion_forwards"


def source_diff(changes: Sequence[tuple[WholeForward, str]], package: str) -> str:
    """The diff of all files, by name; each change is a forward and the function that it calls.

    `package` holds the module `forwards` of these functions.
    """
    files = sorted({forward.file for forward, _ in changes})
    return "".join(_file_diff(file, changes, package) for file in files)


def _file_diff(file: str, changes: Sequence[tuple[WholeForward, str]], package: str) -> str:
    known: dict[int, str] = {}
    inserted: dict[int, list[str]] = {}
    for forward, function in changes:
        if forward.file != file:
            continue
        for excerpt in (forward.imports, forward.body):
            known |= _numbered(excerpt)
        inserted[forward.imports.at] = [f"from {package} import forwards as {ALIAS}"]
        inserted.setdefault(forward.body.at, []).extend(_call(forward, function))
    lines = [f"--- a/{file}", f"+++ b/{file}"]
    added = 0
    for first, last in _ranges(sorted(inserted), known):
        hunk, more = _hunk(first, last, known, inserted, added)
        lines += hunk
        added += more
    return "\n".join(lines) + "\n"


def _numbered(excerpt: Excerpt) -> dict[int, str]:
    return dict(enumerate(excerpt.lines, excerpt.first))


def _call(forward: WholeForward, function: str) -> list[str]:
    """The lines that a forward begins with: the kernel's result, if it applies."""
    defaults = [item.name for item in forward.constants if item.holder == "argument"]
    arguments = ", ".join(["self", *forward.arguments, *defaults])
    indent, name = " " * forward.indent, forward.variable
    return [
        f"{indent}{name} = {ALIAS}.{function}({arguments})",
        f"{indent}if {name} is not None:",
        f"{indent}    return {name}",
    ]


def _ranges(places: Sequence[int], known: Mapping[int, str]) -> Iterator[tuple[int, int]]:
    """The first and last line of each hunk: context around each place, what touches joined."""
    held: tuple[int, int] | None = None
    for place in places:
        around = [n for n in range(place - CONTEXT, place + CONTEXT) if n in known]
        first, last = min(around), max(around)
        if held is not None and first <= held[1] + 1:
            held = (held[0], last)
            continue
        if held is not None:
            yield held
        held = (first, last)
    if held is not None:
        yield held


def _hunk(
    first: int,
    last: int,
    known: Mapping[int, str],
    inserted: Mapping[int, list[str]],
    added: int,
) -> tuple[list[str], int]:
    """The text of a hunk whose file has grown by `added` lines before it, and its own growth."""
    body: list[str] = []
    more = 0
    for number in range(first, last + 1):
        new = inserted.get(number, [])
        body += [*(f"+{line}" for line in new), f" {known[number]}"]
        more += len(new)
    size = last - first + 1
    return [f"@@ -{first},{size} +{first + added},{size + more} @@", *body], more
