"""The program of a standalone kernel file, as text: exact reference, check, gradients, timing."""

from __future__ import annotations

import re
from collections.abc import Sequence

EXACT = '''
class Exact(torch.overrides.TorchFunctionMode):
    """The reference in float64: nothing in it rounds to a narrower float, or its casts alone do."""

    def __init__(self, casts=False):
        super().__init__()
        self.casts = casts

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if self.casts and function is torch.Tensor.to and _is_float(args[1]):
            return args[0].to(args[1]).double()
        wide = (torch.float64 if _is_float(value) else value for value in args)
        named = {k: torch.float64 if _is_float(v) else v for k, v in (kwargs or {}).items()}
        return function(*wide, **named)


def _is_float(value):
    return isinstance(value, torch.dtype) and value.is_floating_point


def widened(tensors):
    """Floating-point tensors in float64."""
    return [x.double() if x.is_floating_point() else x for x in tensors]
'''

_ULPS = '''
def ulps(value, truth, epsilon):
    """The largest error of a result, in last places at the largest value of its row."""
    kind, truth = value.dtype, truth.expand(value.shape).double()
    value, finite = value.double(), torch.isfinite(truth.to(kind).double())
    if not torch.equal(torch.isfinite(value), finite):
        return float("inf")
    size = torch.where(finite, truth, 0.0).abs()
    size = size.amax(COLUMNS, keepdim=True) if WIDE else size.max()
    tiny = torch.finfo(kind).tiny
    unit = torch.exp2(torch.floor(torch.log2(size.clamp(min=tiny)))) * epsilon
    return torch.where(finite, (value - truth).abs() / unit, 0.0).max().item()
'''


def ulps_text(column_axes: int) -> str:
    """The function that counts errors, for rows of one dimension or of several."""
    dims = "-1" if column_axes == 1 else str(tuple(range(-column_axes, 0)))
    wide = "value.shape[-1] > 1"
    if column_axes > 1:
        wide = f"value[..., {', '.join('0' * column_axes)}].numel() < value.numel()"
    return _ULPS.replace("COLUMNS", dims).replace("WIDE", wide)


CHECK = '''
def nearer(value, truth, cast):
    """Element by element the exact result or, where nearer, what the casts make of it."""
    wide = value.double()
    return torch.where((wide - cast).abs() < (wide - truth).abs(), cast, truth).double()


def check(sizes, device):
    """Whether every output is as near to float64 as it should be at these sizes; prints each."""
    inputs = make_inputs(sizes, device)
    found, eager = fused(*inputs, **LAUNCH[device]), reference(*inputs)
    with Exact():
        exact = reference(*widened(inputs))
    with Exact(casts=True):
        planned = reference(*widened(inputs))
    good = True
    for place, (mine, own, truth) in enumerate(zip(found, eager, exact, strict=True)):
        name = f"{'×'.join(map(str, sizes))} out{place}"
        if ALLOWED[place] is None:
            passed, words = torch.equal(mine, own.expand(mine.shape)), "equal to eager's"
        elif ALLOWED[place] == 1:
            apart = (mine.long() - own.long()).abs()
            passed = apart.max() <= 1 and apart.double().mean() <= 1e-3
            words = f"{int(apart.sum())} of {apart.numel()} one off eager's"
        else:
            epsilon, ulp, most = ALLOWED[place]
            error, eagers = ulps(mine, truth, epsilon), ulps(own, truth, epsilon)
            allowed = max(ulp, min(2 * eagers, most))
            words = f"{error:.2f} ulps, eager's own {eagers:.2f}, {allowed:.1f} allowed"
            if error > allowed:
                error = ulps(mine, nearer(mine, truth, planned[place]), epsilon)
                words += f"; {error:.2f} from the equation with its casts"
            passed = mine.dtype == own.dtype and error <= allowed
        print(f"{'passed' if passed else 'FAILED'}  {name}: {words}")
        good = good and passed
    return good
'''

TIMING = '''
def time_it():
    """Print the kernel's time with cold caches beside eager's and that of a copy of its bytes."""
    inputs = make_inputs(SHAPE, "cuda")
    out = fused(*inputs)
    moved = sum(tensor.numel() * tensor.element_size() for tensor in (*inputs, *out))
    source = torch.empty(moved // 2, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    calls = {
        "kernel": lambda: fused(*inputs, out=out),
        "eager": lambda: reference(*inputs),
        "copy": lambda: target.copy_(source),
    }
    took = {n: triton.testing.do_bench(call, return_mode="median") for n, call in calls.items()}
    speed = moved / took["kernel"] / 1e9
    print(f"kernel  {took['kernel'] * 1e3:.1f} µs for {moved / 2**20:.1f} MiB: {speed:.3f} TB/s")
    print(f"        {took['copy'] / took['kernel']:.2f} of the bandwidth of a copy of these bytes")
    print(f"eager   {took['eager'] * 1e3:.1f} µs, {took['eager'] / took['kernel']:.2f} times")
'''

GRADIENT_CHECK = '''
def check_gradients(sizes, device):
    """Whether the operator's gradients are as near to float64 as autograd's of the reference."""
    inputs = make_inputs(sizes, device)
    wanted = [place for place, x in enumerate(inputs) if x.is_floating_point()]
    torch.manual_seed(1)
    sample = [torch.randn(o.shape, device=device).to(o.dtype) for o in reference(*inputs)]

    def gradients(function, given):
        given = [x.detach().requires_grad_(n in wanted) for n, x in enumerate(given)]
        out = function(*given)
        out = (out,) if isinstance(out, torch.Tensor) else out
        outputs = [o for o in out if o.is_floating_point()]
        weights = [s.to(o.dtype) for o, s in zip(out, sample, strict=True) if o.is_floating_point()]
        leaves = [given[n] for n in wanted]
        return torch.autograd.grad(outputs, leaves, weights, allow_unused=True)

    mine, eager = gradients(fusion, inputs), gradients(reference, inputs)
    with Exact():
        exact = gradients(reference, widened(inputs))
    good = True
    for place, found, own, truth in zip(wanted, mine, eager, exact, strict=True):
        if found is None or truth is None:
            passed, words = found is None or not found.any(), "none"
        else:
            epsilon = torch.finfo(found.dtype).eps
            error, eagers = ulps(found, truth, epsilon), ulps(own, truth, epsilon)
            allowed = max(64.0 if found.dtype == torch.float32 else 4.0, 2 * eagers)
            passed = error <= allowed
            words = f"{error:.2f} ulps, eager's own {eagers:.2f}, {allowed:.1f} allowed"
        print(f"{'passed' if passed else 'FAILED'}  gradient of in{place}: {words}")
        good = good and passed
    return good
'''

_LOOP = re.compile(r"^ +(for \w+ in (tl\.)?range\(|while )", re.MULTILINE)

_LOOPS = '''
def mend_loops():
    """Interpret loops as Triton 3.7 does: before, NumPy 2.4 takes no bounds from its scalars."""
    if tuple(map(int, triton.__version__.split(".")[:2])) >= (3, 7):
        return
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def mended(tensor, *scope):
        patch(tensor, *scope)
        tensor.__index__ = lambda self: int(self.handle.data.reshape(-1)[0])

    interpreter._patch_lang_tensor = mended
'''

_MAIN = '''
def main():
    """Check every shape, then time the first one where there is a GPU."""
    device = "cpu" if os.environ.get("TRITON_INTERPRET") == "1" else "cuda"
    if device == "cuda" and not torch.cuda.is_available():
        raise SystemExit("no GPU: TRITON_INTERPRET=1 runs the check on the CPU")
MEND    passed = [check(sizes, device)GRADIENTS for sizes in CHECKED[device]]
    if device == "cuda":
        time_it()
    else:
        print("not timed: there is no GPU")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
'''


def main_text(kernels: Sequence[str], *, gradients: bool = False) -> list[str]:
    """The program's start, which lets the interpreter loop where one of the kernels does."""
    loops = any(_LOOP.search(text) for text in kernels)
    mend = '    if device == "cpu":\n        mend_loops()\n' if loops else ""
    checked = " and check_gradients(sizes, device)" if gradients else ""
    main = _MAIN.replace("MEND", mend).replace("GRADIENTS", checked)
    return [_LOOPS, main] if loops else [main]
