"""Ops kept out of one kernel of Inductor: values stored between them, and no fusion across.

Two things put ops into one kernel. Lowering inlines a producer into all that read it; a node that
is marked (`inductor_realize_to_strides`, Inductor's own mark) becomes a buffer in its place. The
scheduler then fuses buffers; its choice (`InductorChoices.can_fuse`) is asked first, here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch._inductor.virtualized import V

from advisor.model.cures import Split

from .names import VIEWS, keys_of, stored

# Marks of nodes: Inductor stores the one, the other says to which groups of which splits it goes.
_STORE, _GROUPS = "inductor_realize_to_strides", "fusion_advisor_groups"


@dataclass(frozen=True)
class Cut:
    """What became of one split in one graph: names of the values that are stored for it."""

    split: Split
    values: tuple[str, ...] = ()

    @property
    def words(self) -> str:
        """One line for people."""
        return f"{self.split.kernel}: {self.split.words}"


def keep_apart(graph: fx.Graph, splits: Sequence[Split]) -> list[Cut]:
    """Mark what the splits are about in a post-grad graph; those that have no op in it are left.

    A split holds where ops of two of its groups are found.
    """
    if not splits:
        return []
    keys = keys_of(graph)
    cuts = []
    for number, split in enumerate(splits):
        place = {key: at for at, group in enumerate(split.groups) for key in group}
        members = {node: place[key] for node, key in keys.items() if key in place}
        if len(set(members.values())) < 2:
            continue
        for node, at in members.items():
            node.meta[_GROUPS] = node.meta.get(_GROUPS, frozenset()) | {(number, at)}
        crossing = [node for node in members if _crosses(node, members)]
        for node in crossing:
            node.meta[_STORE] = True
        cuts.append(Cut(split, tuple(node.name for node in crossing)))
    return cuts


def _crosses(node: fx.Node, members: dict[fx.Node, int]) -> bool:
    """Whether an op of another group reads the node's value, itself or a view of it."""
    if node.target in VIEWS or node.op != "call_function":
        return False
    return any(
        members.get(reader, members[node]) != members[node] for reader in _readers(node, node)
    )


def _readers(node: fx.Node, base: fx.Node) -> Iterator[fx.Node]:
    for user in node.users:
        if user.target in VIEWS and stored(user) is base:
            yield from _readers(user, base)
        else:
            yield user


@contextmanager
def choosing_apart() -> Iterator[None]:
    """While this lasts, Inductor fuses no two buffers whose ops are marked to stay apart.

    Whatever choices are set otherwise still hold.
    """
    handler = copy.copy(V.choices)
    fuse: Callable[..., bool] = handler.can_fuse

    def can_fuse(scheduler: Any, node1: Any, node2: Any, score: Any) -> bool:
        if _are_apart(_groups(node1), _groups(node2)):
            return False
        return fuse(scheduler, node1, node2, score)

    # An instance's attribute comes before its class's static method.
    handler.can_fuse = can_fuse  # type: ignore[method-assign,assignment]
    with V.set_choices_handler(handler):
        yield


def _groups(scheduled: Any) -> dict[int, set[int]]:
    """The groups of a scheduler node's ops, by split."""
    found: dict[int, set[int]] = {}
    for part in scheduled.get_nodes():
        for origin in getattr(part.node, "origins", None) or ():
            for number, at in getattr(origin, "meta", {}).get(_GROUPS, ()):
                found.setdefault(number, set()).add(at)
    return found


def _are_apart(ours: dict[int, set[int]], theirs: dict[int, set[int]]) -> bool:
    return any(len(ours[number] | theirs[number]) > 1 for number in ours.keys() & theirs.keys())
