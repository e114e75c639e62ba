"""Roles of kernels in the eight groups that a person tells apart, each with one colour.

Colours are Okabe and Ito's; a group is also named wherever its colour is used.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Bound = Literal["compute", "memory", "communication", "other"]


class RoleGroup(NamedTuple):
    """Roles shown alike; `bound` is what kernels of these roles usually wait for."""

    name: str
    roles: tuple[str, ...]
    color: str
    bound: Bound


GROUPS: tuple[RoleGroup, ...] = (
    RoleGroup("matrix, convolution", ("gemm", "conv"), "#0072B2", "compute"),
    RoleGroup("attention", ("attention",), "#CC79A7", "compute"),
    RoleGroup(
        "norm, softmax, reduction",
        ("norm", "softmax", "loss", "reduction", "scan", "sort", "pool"),
        "#009E73",
        "memory",
    ),
    RoleGroup(
        "pointwise, cast", ("pointwise", "rotary", "cast", "quantize", "rng"), "#E69F00", "memory"
    ),
    RoleGroup(
        "copy, layout, lookup",
        ("copy", "layout", "embedding", "cache", "routing"),
        "#56B4E9",
        "memory",
    ),
    RoleGroup("optimizer", ("optimizer",), "#F0E442", "memory"),
    RoleGroup("communication", ("communication",), "#D55E00", "communication"),
    RoleGroup("other", ("other",), "#8A8F98", "other"),
)
OTHER = len(GROUPS) - 1
_BY_ROLE = {role: place for place, group in enumerate(GROUPS) for role in group.roles}


def group_of(role: str) -> int:
    """The place in `GROUPS` of a role; an unknown one is `other`."""
    return _BY_ROLE.get(role, OTHER)
