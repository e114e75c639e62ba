"""Compiles a row kernel for AMD GPUs and prints what LLVM remarks on each, as JSON.

Run in a process of its own: `python amd_occupancy_oracle.py gfx1100:32 gfx942:64 ...`.
"""

import json
import re
import sys

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def row(x, y, n, BLOCK: tl.constexpr):  # noqa: N803
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at).to(tl.float32)
    e = tl.exp(v - tl.max(v, 0))
    tl.store(y + at, e / tl.sum(e, 0))


def remarks(arch, lanes, warps, block):
    source = ASTSource(
        fn=row,
        signature={"x": "*fp16", "y": "*fp16", "n": "i32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": block},
    )
    target = GPUTarget("hip", arch, lanes)
    made = triton.compile(source, target=target, options={"num_warps": warps})
    text = made.asm["amdgcn"]

    def figure(pattern):
        found = re.search(pattern, text)
        return int(found[1]) if found else 0

    return {
        "arch": arch,
        "threads": warps * lanes,
        "waves": warps,
        "registers": figure(r"\.vgpr_count:\s*(\d+)"),
        "scalar_registers": figure(r"\.sgpr_count:\s*(\d+)"),
        "shared_bytes": made.metadata.shared,
        "occupancy": figure(r";\s*Occupancy:\s*(\d+)"),
    }


found = []
for target in sys.argv[1:]:
    name, size = target.split(":")
    found += [remarks(name, int(size), warps, block) for warps, block in ((1, 2048), (4, 4096))]
sys.stdout.write(json.dumps(found))
