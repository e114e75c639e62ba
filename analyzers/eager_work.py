"""The work of PyTorch's own memory-bound kernels, from the op as it was recorded.

Bytes are what the op reads and writes once. Instructions per element are those of ATen's loops,
which compute an offset, convert, or update a running mean for every element; they were fitted on
half of the recorded H200 traces and tested on the other half (`benchmarks/kernel_model.md`), and
are counts of a program, not of a card. Shapes of launches follow ATen's launch rules (sources at
each constant). An op that is not listed has no work here: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from advisor.hardware.gpu import Gpu
from advisor.hardware.occupancy import occupancy
from advisor.model.optable import ITEM_BYTES
from analyzers.access import WARP_LANES, Walk, walk
from analyzers.cost_model import Work
from analyzers.recorded_ops import Operand, RecordedOp

# A warp's request takes the L1 one clock for each line it touches (NVIDIA, Nsight Compute,
# "Memory Tables": tag requests and wavefronts).
LINE_BYTES = 128


@dataclass(frozen=True)
class Instructions:
    """Instructions of threads an element costs; `benchmarks/kernel_model.py --fit` finds them."""

    arithmetic: float = 0.824  # per floating-point instruction of the op itself
    cast: float = 72.6  # dtype looked up at run time, load and store one by one
    index: float = 8.56  # offset of an element, beside:
    index_thread: float = 61.3  # per thread, shared by its 4 (elements of 4 bytes: 2) elements
    index_axis: float = 5.16  # per axis: one division by multiplication
    index_operand: float = 3.9  # per axis and operand: one multiply-add in 64 bits
    line: float = 4.93  # per line that a warp touches: a clock, in which 4 schedulers could issue
    softmax: float = 47.2  # maximum, exponential, sum, division; a row in a warp's registers
    softmax_thread: float = 343.0  # longer rows: per thread, two reductions of a block
    norm: float = 24.1  # running mean and variance, beside:
    norm_thread: float = 760.0  # per thread, joining those of the others, with divisions
    channel_norm: float = 17.6  # channels last, element by element
    concat: float = 142.0  # offset by the shape of a slice
    row_reduction: float = 43.0
    column_tail: float = 16.8  # trips to memory of the second stage, after the bytes


FITTED = Instructions()

# Instructions per element of the function itself, beside loading and storing; special functions.
# (Estimates of CUDA's single-precision routines: a division or an exponential is about ten
# instructions, the error function about forty; `Instructions.arithmetic` scales them all.)
ARITHMETIC: dict[str, tuple[int, int]] = {
    "silu": (10, 2), "silu_backward": (16, 2), "gelu": (40, 1), "gelu_backward": (60, 3),
    "div": (20, 1), "sigmoid": (10, 2), "tanh": (20, 2), "exp": (4, 1), "rsqrt": (2, 1),
}  # fmt: skip
_ELEMENTWISE = frozenset({
    "mul", "add", "sub", "div", "neg", "pow", "silu", "silu_backward", "gelu", "gelu_backward",
    "threshold_backward", "clamp_min", "where", "sigmoid", "tanh", "exp", "rsqrt", "relu",
})  # fmt: skip

# ATen `layer_norm_kernel.cu`: threads of the block that normalises one row.
NORM_THREADS = 128
# ATen `PersistentSoftmax.cuh`: the longest row that a warp keeps in registers.
REGISTER_ROW = 1_024
# ATen `Normalization.cuh`, `batch_norm_transform_input_channels_last_kernel`: a thread loads four
# elements, one by one, and waits again for having stored them.
CHANNEL_UNROLL, CHANNEL_TRIPS = 4, 2
# ATen `group_norm_kernel.cu`: threads of a block that walks one group, an element each at a time.
MOMENTS_THREADS = 512
# ATen `ForeachFunctors.cuh`, `MultiTensorApply.cuh`: a block of 512 threads takes a chunk of 65,536
# elements, 4 at a time a thread; at most 320 blocks a launch.
CHUNK, CHUNK_THREADS, CHUNK_UNROLL = 65_536, 512, 4
# Tensors read or written for each element. The optimizers give `addcmul` one gradient twice.
CHUNKED: dict[str, int] = {
    "_foreach_mul_": 2, "_foreach_add_": 2, "_foreach_div_": 2, "_foreach_sqrt": 2,
    "_foreach_lerp_": 3, "_foreach_addcmul_": 3, "_foreach_addcdiv_": 4, "_fused_adamw_": 7,
    "_fused_adam_": 7,
}  # fmt: skip
# Fused steps wait twice a chunk: for their four tensors, then for square root and division.
CHUNK_TRIPS: dict[str, int] = {"_fused_adamw_": 2, "_fused_adam_": 2}


@dataclass(frozen=True)
class Launch:
    """What a trace says of one kernel of the op; all but the name may be unknown."""

    kernel: str = ""
    blocks: int | None = None
    threads: int | None = None  # of a block
    registers: int | None = None


@dataclass(frozen=True)
class Request:
    """One kernel whose work is asked for."""

    op: RecordedOp
    launch: Launch
    gpu: Gpu
    counts: Instructions = field(default=FITTED)

    @property
    def name(self) -> str:
        """`mul` for `aten::mul`."""
        return self.op.name.rpartition("::")[2]

    def threads(self) -> int:
        """Threads of the launch, 0 if unknown."""
        return (self.launch.blocks or 0) * (self.launch.threads or 0)

    @property
    def tensors(self) -> tuple[Operand, ...]:
        """Tensor arguments with at least one axis."""
        return tuple(item for item in self.op.tensors if item.shape)


def eager_work(
    op: RecordedOp, launch: Launch, gpu: Gpu, counts: Instructions = FITTED
) -> Work | None:
    """The work of a kernel that `op` launched, or None where it is not known.

    The kernel's name only tells the phases of one op apart (moments and normalisation, say); how an
    elementwise op walks its tensors follows from their shapes and strides.
    """
    request = Request(op, launch, gpu, counts)
    if request.name in CHUNKED:
        return _chunks(request)
    # Listed tensors (of `cat`) come without a dtype; its kernel tells their size.
    known = request.name == "cat" or all(_size(item.dtype) for item in request.tensors)
    if not request.tensors or not known:
        return None
    if request.name.removesuffix("_") in _ELEMENTWISE or request.name in ("copy_", "fill_"):
        return _elementwise(request)
    build = _BUILDERS.get(request.name)
    return build(request) if build is not None else None


def _elementwise(request: Request) -> Work | None:
    if "elementwise_kernel" not in request.launch.kernel and request.launch.kernel:
        return None
    name, tensors = request.name, request.tensors
    inputs, result = list(tensors), None
    if name == "copy_":
        inputs, result = list(tensors[1:]), tensors[0]
    elif name == "fill_":
        inputs, result = [], tensors[0]
    elif name.endswith("_"):
        result = tensors[0]
    elif name == "mul" and len(request.op.tensors) == 3:
        inputs, result = list(tensors[:-1]), tensors[-1]
    dtype = result.dtype if result is not None else _result_dtype(request)
    loop = walk(
        inputs,
        [_size(item.dtype) for item in inputs],
        result_bytes=_size(dtype),
        result=result,
        converts=converts(name, dtype, tensors),
    )
    read = sum(_bytes(item) for item in inputs)
    written = loop.elements * _size(dtype)
    in_place = name.endswith("_") and name not in ("copy_", "fill_")
    return _loop_work(request, loop, read, written, in_place=in_place)


def _loop_work(request: Request, loop: Walk, read: int, written: int, *, in_place: bool) -> Work:
    counts = request.counts
    flops, special = ARITHMETIC.get(request.name.removesuffix("_"), (2, 0))
    each = flops * counts.arithmetic
    if loop.path == "cast":
        each += counts.cast
    elif loop.path == "index":
        each += index_instructions(loop, counts)
    return Work(
        bytes_moved=read + written,
        footprint_bytes=read if in_place else 0,
        special=special * loop.elements,
        instructions=each * loop.elements,
        pattern=loop.path,
    )


def index_instructions(loop: Walk, counts: Instructions = FITTED) -> float:
    """Instructions per element of a loop that computes every element's offset."""
    unroll = 4 if loop.strides[0][1] <= 2 else 2
    lines = sum(
        min(WARP_LANES, max(WARP_LANES * abs(stride) * size / LINE_BYTES, 1.0))
        for stride, size in loop.strides
    )
    return (
        counts.index
        + counts.index_thread / unroll
        + loop.axes * (counts.index_axis + counts.index_operand * loop.operands)
        + counts.line * lines
    )


def _result_dtype(request: Request) -> str:
    """The widest floating dtype of the arguments; a comparison's mask does not count."""
    numbers = [item.dtype for item in request.tensors if item.dtype != "bool"]
    numbers = numbers or [item.dtype for item in request.op.tensors if item.dtype != "bool"]
    return max(numbers, key=_size, default="float32")


def converts(name: str, dtype: str, tensors: Sequence[Operand]) -> bool:
    """Whether dtypes are looked up at run time (ATen `Copy.cu` has a loop for float32 to half)."""
    if name == "where" or len({item.dtype for item in tensors}) == 1:
        return False
    half = dtype in ("float16", "bfloat16") and tensors[-1].dtype == "float32"
    return not (name == "copy_" and half)


def _reduction(request: Request) -> Work | None:
    """A sum over the fast axis reads rows; over others, blocks of columns are added up twice."""
    if "reduce_kernel" not in request.launch.kernel:
        return None
    item = request.tensors[0]
    rows = "<512" in request.launch.kernel  # ATen `Reduce.cuh`: 512 threads where rows are reduced
    if rows:
        return Work(
            bytes_moved=_bytes(item),
            instructions=request.counts.row_reduction * item.elements,
            pattern="row_reduction",
        )
    return Work(
        bytes_moved=_bytes(item),
        tail_trips=request.counts.column_tail,
        pattern="column_reduction",
    )


def _softmax(request: Request) -> Work | None:
    """Rows of at most 1,024 stay in a warp's registers; longer ones are read again from L2."""
    item, count = request.tensors[0], len(request.tensors)
    total = _bytes(item)
    if item.shape[-1] <= REGISTER_ROW:
        return Work(
            bytes_moved=total * (count + 1),
            special=2 * item.elements,
            instructions=request.counts.softmax * item.elements,
            pattern="softmax",
        )
    if "Reg" in request.launch.kernel or "Smem" in request.launch.kernel:
        reads = count
    else:
        reads = 3 if count == 1 else 2 * count
    return Work(
        bytes_moved=total * (count + 1),
        cached_bytes=total * (reads + 1),
        special=2 * item.elements,
        instructions=request.counts.softmax_thread * request.threads(),
        pattern="softmax",
    )


def _layer_norm(request: Request) -> Work | None:
    kernel, item = request.launch.kernel, request.tensors[0]
    if kernel and "layer_norm" not in kernel:
        return None
    tensors = 3 if request.name.endswith("backward") else 2
    return Work(
        bytes_moved=tensors * _bytes(item),
        instructions=request.counts.norm * item.elements
        + request.counts.norm_thread * request.threads(),
        pattern="norm",
    )


def _batch_norm(request: Request) -> Work | None:
    kernel, item = request.launch.kernel, request.tensors[0]
    if "transform" not in kernel:
        return None
    moved = 2 * _bytes(item)
    return _resident(request, channel_norm(moved, item.elements, request.threads(), request.counts))


def channel_norm(
    bytes_moved: int, elements: int, threads: int, counts: Instructions = FITTED
) -> Work:
    """A channels-last batch norm whose statistics are known, by so many threads."""
    rounds = elements / max(threads * CHANNEL_UNROLL, 1)
    return Work(
        bytes_moved=bytes_moved,
        instructions=counts.channel_norm * elements,
        trips=rounds * CHANNEL_TRIPS,
        pattern="channel_norm",
    )


def _group_norm(request: Request) -> Work | None:
    """Normalisation is an indexed loop over x and two values a channel; moments walk one by one."""
    item, kernel = request.tensors[0], request.launch.kernel
    if "Moments" in kernel and request.launch.blocks:
        return Work(
            bytes_moved=_bytes(item),
            trips=item.elements / (request.launch.blocks * MOMENTS_THREADS),
            pattern="norm",
        )
    if "elementwise_kernel" not in kernel:
        return None
    loop = Walk("index", 2, item.elements, ((1, _size(item.dtype)),) * 2 + ((0, 4),) * 2)
    return _loop_work(request, loop, _bytes(item), _bytes(item), in_place=False)


def _concat(request: Request) -> Work | None:
    vectorised = "vectorized" in request.launch.kernel
    elements = sum(item.elements for item in request.tensors)
    size = _size(request.tensors[0].dtype) or _slice_bytes(request)
    if not size:
        return None
    return Work(
        bytes_moved=2 * size * elements,
        instructions=0 if vectorised else request.counts.concat * elements,
        pattern="concat",
    )


def _slice_bytes(request: Request) -> int:
    """Bytes of an element of listed tensors, whose dtype is not recorded: from the kernel."""
    _, _, rest = request.launch.kernel.partition("OpaqueType<")
    digits = rest[: next((i for i, c in enumerate(rest) if not c.isdigit()), 0)]
    return int(digits) if digits else 0


def _chunks(request: Request) -> Work | None:
    """One launch of a multi-tensor op: so many chunks as it has blocks."""
    blocks = request.launch.blocks
    if blocks is None or "multi_tensor_apply" not in request.launch.kernel:
        return None
    size = 2 if "BFloat16" in request.launch.kernel or "Half" in request.launch.kernel else 4
    moved = blocks * CHUNK * size * CHUNKED[request.name]
    trips = CHUNK / (CHUNK_THREADS * CHUNK_UNROLL) * CHUNK_TRIPS.get(request.name, 1)
    return _resident(request, Work(bytes_moved=moved, trips=trips, pattern="chunks"))


def _resident(request: Request, work: Work) -> Work:
    """With the blocks of the launch and how many the GPU holds at once, by recorded registers."""
    launch = request.launch
    if launch.blocks is None or launch.threads is None:
        return work
    held = occupancy(request.gpu.arch, registers=launch.registers or 32, threads=launch.threads)
    return replace(
        work,
        programs=launch.blocks,
        resident_programs=max(held.blocks, 1) * request.gpu.sm_count,
    )


def _size(dtype: str) -> int:
    return ITEM_BYTES.get(dtype, 0)


def _bytes(item: Operand) -> int:
    return item.elements * _size(item.dtype)


_BUILDERS: dict[str, Callable[[Request], Work | None]] = {
    "sum": _reduction,
    "mean": _reduction,
    "_softmax": _softmax,
    "_log_softmax": _softmax,
    "_log_softmax_backward_data": _softmax,
    "native_layer_norm": _layer_norm,
    "native_layer_norm_backward": _layer_norm,
    "native_batch_norm": _batch_norm,
    "native_group_norm": _group_norm,
    "cat": _concat,
}
