"""Kernels of two runs matched by role, operator, order and shape; a name alone matches nothing.

Names change with every library version, and compilers number their kernels: a name counts only
where role and calls agree with it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable
from operator import attrgetter

from advisor.model.comparison import Basis, KernelChange, RoleChange
from advisor.model.report import KernelRow
from advisor.report.shift import difference

MAX_CALLS = 4
Rows = tuple[KernelRow, ...]
Pair = tuple[KernelRow, KernelRow, Basis]
Key = Callable[[KernelRow], Hashable]


def kernel_changes(before: Rows, after: Rows) -> tuple[KernelChange, ...]:
    """Every kernel of both runs once, the largest absolute change of time first."""
    pairs, gone, new = match(before, after)
    changes = [_change(a.role, a, b, basis) for a, b, basis in pairs]
    changes += [_change(kernel.role, kernel, None, "none") for kernel in gone]
    changes += [_change(kernel.role, None, kernel, "none") for kernel in new]
    return tuple(sorted(changes, key=lambda c: (-abs(_moved(c)), c.before or "", c.after or "")))


def match(before: Rows, after: Rows) -> tuple[list[Pair], list[KernelRow], list[KernelRow]]:
    """Pairs, then what is left on either side.

    In turn: the same name and calls; the same calls (operators and shapes) under another name; the
    same name and operators; the same operators as often. Calls first count, then only their kinds
    do. Several candidates of one key are paired in order of first execution.
    """
    pairs: list[Pair] = []
    left, right = list(before), list(after)
    rounds: tuple[tuple[Basis, Key], ...] = (
        ("name_and_calls", lambda k: (k.role, k.name, _calls(k) or _operators(k))),
        ("name_and_calls", lambda k: (k.role, k.name, _kinds(k) or _operators(k))),
        ("calls", lambda k: (k.role, _calls(k)) if k.calls else None),
        ("calls", lambda k: (k.role, _kinds(k)) if k.calls else None),
        ("name_and_operators", lambda k: (k.role, k.name, _operators(k))),
        ("operators_and_order", _operators_and_count),
    )
    for basis, key in rounds:
        found = _pair(left, right, key)
        pairs += [(a, b, basis) for a, b in found]
        left = _without(left, (a for a, _ in found))
        right = _without(right, (b for _, b in found))
    return pairs, left, right


def role_changes(before: Rows, after: Rows) -> tuple[RoleChange, ...]:
    """Time and executions by role, the largest absolute change first."""
    first, second = _by_role(before), _by_role(after)
    changes = []
    for role in first.keys() | second.keys():
        a, b = first.get(role, ()), second.get(role, ())
        time = difference(_time(a), _time(b), _steps(a), _steps(b), higher_is_better=False)
        counts = sum((k.count for k in a), 0.0), sum((k.count for k in b), 0.0)
        changes.append(
            RoleChange(role=role, count_before=counts[0], count_after=counts[1], time=time)
        )
    return tuple(sorted(changes, key=lambda c: (-abs(c.time.change or 0), c.role)))


def _pair(left: list[KernelRow], right: list[KernelRow], key: Key) -> list[tuple[KernelRow, ...]]:
    groups: dict[Hashable, tuple[list[KernelRow], list[KernelRow]]] = defaultdict(lambda: ([], []))
    for place, rows in enumerate((left, right)):
        for kernel in sorted(rows, key=_order):
            if (found := key(kernel)) is not None:
                groups[found][place].append(kernel)
    return [pair for a, b in groups.values() for pair in zip(a, b, strict=False)]


def _without(rows: list[KernelRow], used: Iterable[KernelRow]) -> list[KernelRow]:
    taken = {id(kernel) for kernel in used}
    return [kernel for kernel in rows if id(kernel) not in taken]


def _order(kernel: KernelRow) -> tuple[bool, int]:
    return kernel.first_execution is None, kernel.first_execution or 0


def _calls(kernel: KernelRow) -> tuple[tuple[str, float], ...]:
    """Operators with shapes, and how often. A generated kernel names itself as its operator, and
    compilers number them anew: then the shapes alone count."""
    own = f"{kernel.name} "
    return tuple(
        sorted((call.removeprefix(own), round(count, 6)) for call, count in kernel.calls.items())
    )


def _kinds(kernel: KernelRow) -> tuple[str, ...]:
    return tuple(call for call, _ in _calls(kernel))


def _operators(kernel: KernelRow) -> tuple[str, ...]:
    return tuple(sorted(op for op in kernel.ops if op != kernel.name))


def _operators_and_count(kernel: KernelRow) -> Hashable:
    operators = _operators(kernel)
    return (kernel.role, operators, round(kernel.count, 6)) if operators else None


def _change(
    role: str, before: KernelRow | None, after: KernelRow | None, basis: Basis
) -> KernelChange:
    sides: list[Rows] = [() if kernel is None else (kernel,) for kernel in (before, after)]
    first, second = sides
    calls = next((kernel.calls for kernel in (*first, *second)), {})
    return KernelChange(
        role=role,
        basis=basis,
        before=None if before is None else before.name,
        after=None if after is None else after.name,
        calls=tuple(calls)[:MAX_CALLS],
        count_before=None if before is None else before.count,
        count_after=None if after is None else after.count,
        time=difference(
            _time(first), _time(second), _steps(first), _steps(second), higher_is_better=False
        ),
    )


def _moved(change: KernelChange) -> float:
    return (change.time.after or 0) - (change.time.before or 0)


def _by_role(kernels: Rows) -> dict[str, Rows]:
    return {
        role: tuple(k for k in kernels if k.role == role)
        for role in sorted(set(map(attrgetter("role"), kernels)))
    }


def _time(kernels: Rows) -> int:
    return sum(kernel.time_ns for kernel in kernels)


def _steps(kernels: Rows) -> list[int]:
    """Time of all of them in each step; empty where a kernel's steps are unknown."""
    if len({len(kernel.time_per_step_ns) for kernel in kernels}) != 1:
        return []
    return [sum(step) for step in zip(*(k.time_per_step_ns for k in kernels), strict=True)]
