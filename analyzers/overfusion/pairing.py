"""Kernels of two runs of one workload paired: which launches took the place of which.

Launches that are the same work by role, operator and operands are aligned in order first; what lies
between two aligned ones on one side took the place of what lies there on the other. Within such a
stretch, the operations that a compiler names in its kernels (Inductor, XLA, TensorRT, TVM, ONNX
Runtime) tell which launches belong to which kernel. A kernel's name alone matches nothing. Where
the two sides of a stretch do not do the same products on the same amounts of data, their products
are matched by shape, and the rest stays unpaired: `certain` is False, and nobody judges it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from math import isclose

from advisor.model.step_record import Launch, Tensor
from analyzers.kernel_roles import classify

# What fusion leaves alone, whoever computes it: told by the operands alone.
ANCHORS = ("gemm", "conv")
SAME_WORK = 0.01


@dataclass(frozen=True)
class Pairing:
    """`after` took the place of `before`; one of both may be empty."""

    before: tuple[Launch, ...]
    after: tuple[Launch, ...]
    certain: bool = True

    @property
    def change_ns(self) -> int:
        """How much more time the launches take now, the sum over all."""
        return _time(self.after) - _time(self.before)

    @property
    def is_same(self) -> bool:
        """One launch that stands for one, and does the same."""
        if len(self.before) != 1 or len(self.after) != 1:
            return False
        return _key(self.before[0]) == _key(self.after[0])

    @property
    def is_communication(self) -> bool:
        """Collectives: how long they take depends on the other ranks."""
        return all(x.role == "communication" for x in (*self.before, *self.after))


def pair(before: Sequence[Launch], after: Sequence[Launch]) -> list[Pairing]:
    """All launches of both steps, each in one pairing; collectives are one of their own."""
    sides = [[x for x in side if x.role != "communication"] for side in (before, after)]
    left, right = sides
    keys = [[_key(launch) for launch in side] for side in sides]
    found: list[Pairing] = []
    doubtful: tuple[list[Launch], list[Launch]] = ([], [])
    matcher = SequenceMatcher(None, keys[0], keys[1], autojunk=False)
    alone: tuple[list[Launch], list[Launch]] = ([], [])
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            found += [Pairing((a,), (b,)) for a, b in zip(left[i:j], right[k:m], strict=True)]
        elif tag in ("delete", "insert"):
            alone[0].extend(left[i:j])
            alone[1].extend(right[k:m])
        elif _same_work(left[i:j], right[k:m]):
            found += _stretch(tuple(left[i:j]), tuple(right[k:m]))
        else:
            doubtful[0].extend(left[i:j])
            doubtful[1].extend(right[k:m])
    found += _moved(*alone)
    found += _by_shape(*doubtful)
    collectives = [tuple(x for x in s if x.role == "communication") for s in (before, after)]
    if any(collectives):
        found.append(Pairing(collectives[0], collectives[1]))
    return found


def _time(launches: Iterable[Launch]) -> int:
    return sum(launch.time_ns for launch in launches)


def _key(launch: Launch) -> Hashable:
    shapes = tuple(tensor.shape for tensor in launch.operands)
    if launch.role in ANCHORS and (factors := _factors(launch)):
        return launch.role, tuple(tensor.shape for tensor in factors)
    own = launch.op if launch.op != launch.name else None
    if not launch.is_kernel:
        return launch.role, launch.name
    if own is None and not shapes:
        return launch.role, launch.name, launch.grid
    return launch.role, own or _operations(launch), shapes


def _factors(launch: Launch) -> tuple[Tensor, ...]:
    """The two operands of a product: a bias in front and an output behind are no part of it."""
    matrices = [tensor for tensor in launch.operands if len(tensor.shape) > 1]
    if (launch.op or "").rpartition("::")[2] in ("baddbmm", "addmm_", "addbmm"):
        matrices = matrices[1:]
    elif (launch.op or "").endswith(("addmm", "addmm_activation")) and len(matrices) > 2:
        matrices = matrices[-2:] if matrices[0].shape == matrices[-1].shape else matrices[:2]
    return tuple(matrices[:2])


def _work(launches: Iterable[Launch]) -> float:
    """Multiplications of all matrix products: a [.., M, K] by [.., K, N] has M K N."""
    total = 0.0
    for launch in launches:
        factors = _factors(launch) if launch.role == "gemm" else ()
        if len(factors) == 2:
            total += factors[0].elements * factors[1].shape[-1]
    return total


def _same_work(before: Sequence[Launch], after: Sequence[Launch]) -> bool:
    """Whether two stretches can be the same computation: their products, their largest tensor."""
    if not before or not after:
        return True
    convolutions = [[_key(x) for x in side if x.role == "conv"] for side in (before, after)]
    if len(convolutions[0]) != len(convolutions[1]):
        return False
    mine, theirs = _work(after), _work(before)
    if not isclose(mine, theirs, rel_tol=SAME_WORK) and not (
        theirs > mine and _absorbs(before, after)
    ):
        return False
    sizes = {tensor.elements for launch in before for tensor in launch.operands}
    largest = max((x.largest for x in after if x.role not in ANCHORS), default=0)
    return not sizes or not largest or largest in sizes or largest <= max(sizes)


def _absorbs(before: Sequence[Launch], after: Sequence[Launch]) -> bool:
    """Whether the factors of every product that is missing are operands of another kernel."""
    left = [_key(x) for x in after if x.role == "gemm"]
    given = {t.elements for x in after if x.role != "gemm" for t in x.operands}
    for launch in before:
        if launch.role != "gemm":
            continue
        if _key(launch) in left:
            left.remove(_key(launch))
        elif not any(tensor.elements in given for tensor in _factors(launch)):
            return False
    return True


def _moved(before: Sequence[Launch], after: Sequence[Launch]) -> list[Pairing]:
    """What stands alone on either side: the same work at another place, or new, or gone."""
    waiting: dict[Hashable, deque[Launch]] = defaultdict(deque)
    for launch in before:
        waiting[_key(launch)].append(launch)
    found, used = [], set()
    for launch in after:
        same = waiting[_key(launch)]
        if same:
            used.add(id(same[0]))
        found.append(Pairing((same.popleft(),) if same else (), (launch,)))
    return [*found, *(Pairing((x,), ()) for x in before if id(x) not in used)]


def _by_shape(before: Sequence[Launch], after: Sequence[Launch]) -> list[Pairing]:
    """Products by shape in order, whatever lies between; all others as they are, unpaired."""
    waiting: dict[Hashable, list[Launch]] = defaultdict(list)
    for launch in before:
        if launch.role in ANCHORS:
            waiting[_key(launch)].append(launch)
    found, rest, used = [], [], set()
    for launch in after:
        same = waiting[_key(launch)] if launch.role in ANCHORS else []
        if same:
            used.add(id(same[0]))
            found.append(Pairing((same.pop(0),), (launch,)))
        else:
            rest.append(launch)
    left = tuple(launch for launch in before if id(launch) not in used)
    return [*found, Pairing(left, tuple(rest), certain=False)] if left or rest else found


def _stretch(before: tuple[Launch, ...], after: tuple[Launch, ...]) -> list[Pairing]:
    """The pairings of a stretch: by the operations that each kernel names, or as a whole."""
    if len(after) < 2 or len(before) < 2:
        return [Pairing(before, after)]
    named = [_operations(launch) for launch in after]
    if not all(named):
        return [Pairing(before, after)]
    shares: list[list[Launch]] = [[] for _ in after]
    place = 0
    for launch in before:
        word = _word(launch.op or launch.name)
        ahead = next((i for i in range(place, len(after)) if word in named[i]), None)
        if ahead is None:
            return [Pairing(before, after)]
        place = ahead
        shares[place].append(launch)
    if not all(shares):
        return [Pairing(before, after)]
    return [Pairing(tuple(own), (one,)) for own, one in zip(shares, after, strict=True)]


def _operations(launch: Launch) -> frozenset[str]:
    """What a kernel computes, as its compiler says in its name; empty where nothing is said."""
    known = classify(launch.name, launch.op)
    return frozenset(_word(part) for part in known.ops or () if not part.startswith("("))


def _word(op: str) -> str:
    """`aten::add_` as `add`."""
    return op.rpartition("::")[2].split(".")[0].strip("_").lower()
