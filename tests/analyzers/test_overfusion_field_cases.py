"""Over-fusion as people met it, in small: cases 1 to 6 and 9 to 11 of those from the field."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from advisor.model.applied import KernelResources
from advisor.model.overfusion import KernelCode
from advisor.model.step_record import Tensor
from advisor.verify.binaries import read_amdgcn
from analyzers.overfusion.judge import judge_pair
from tests.builders.steps import launch, spilled, step


def test_a_kernel_that_loses_its_registers_and_gets_slower_looks_like_a_spill() -> None:
    """One matrix kernel generated twice: 168 registers to 80, and a third more time."""
    before = step(launch("kernel", 300, registers=168))
    (lost,) = judge_pair(before, step(launch("kernel", 393, registers=80))).regressions
    assert lost.cause == "register_spill"
    assert "the binary would tell" in lost.candidates[0].evidence.text


def test_few_registers_are_no_proof_against_a_spill() -> None:
    """A large loop fusion held at 32 registers, which spills kilobytes a thread."""
    before = step(launch("first", 300), launch("second", 300))
    fused = launch("fused", 2_000, registers=32)
    (lost,) = judge_pair(before, step(fused, codes=(spilled(8_000),))).regressions
    assert lost.cause == "register_spill"


def test_a_spill_that_grew_explains_a_loss_and_one_that_did_not_explains_none() -> None:
    """A norm's gradient: 64 bytes of stack in both builds, loads of spills 128 to 208."""
    before = step(launch("fused", 400), codes=(spilled(64),))
    worse = judge_pair(before, step(launch("fused", 620), codes=(spilled(104),)))
    assert worse.regressions[0].cause == "register_spill"
    assert not judge_pair(before, step(launch("fused", 402), codes=(spilled(104),))).regressions


def test_one_optimizer_kernel_with_twice_the_registers_of_those_it_replaced() -> None:
    """Fused AdamW against foreach: 67 % occupancy where each list kernel has all of it."""
    before = step(*(launch(f"foreach_{i}", 100, registers=32) for i in range(4)))
    (lost,) = judge_pair(before, step(launch("fused_adamw", 800, registers=48))).regressions
    assert lost.cause == "occupancy_registers"


@pytest.mark.parametrize(("fused_us", "members_us", "lost"), [(1.7, 20.6, False), (30, 10, True)])
def test_the_verdict_depends_on_the_size(fused_us: float, members_us: float, lost: bool) -> None:
    """One loop fusion: twelve times faster on the small grid, three times slower on a large one."""
    before = step(launch("first", members_us / 2), launch("second", members_us / 2))
    after = step(launch("fused", fused_us, registers=32), codes=(spilled(8_000),))
    assert bool(judge_pair(before, after).regressions) == lost


def test_a_product_with_branches_behind_it_in_one_kernel() -> None:
    """Four branches of sigmoids with six more operands of the product's size behind it."""
    left, right = (
        Tensor(shape=(1_024, 5_098), dtype="float"),
        Tensor(shape=(5_098, 1_024), dtype="float"),
    )
    square = Tensor(shape=(1_024, 1_024), dtype="float")
    product = launch(
        "nvjet_hsh",
        20,
        role="gemm",
        library="cublas",
        operands=(left, right, square),
        grid=(64, 1, 1),
    )
    branches = launch("branches", 10, operands=(square,) * 8)
    fused = launch("product_branches", 60, operands=(left, right, *(square,) * 7), grid=(64, 1, 1))
    (lost,) = judge_pair(step(product, branches), step(fused)).regressions
    assert lost.cause == "gemm_epilogue"
    assert lost.candidates[0].evidence.values["extra_operands"] == 6


def test_fewer_kernels_and_a_slower_reduction() -> None:
    """A reduction that its cheap epilogue made fall back to a plain loop."""
    before = step(launch("reduce", 100, role="reduction"), launch("scale", 5))
    (lost,) = judge_pair(before, step(launch("reduce_scale", 300, role="reduction"))).regressions
    assert {member.name for member in lost.members} == {"reduce", "scale"}


@pytest.mark.parametrize(("library", "compiled"), [(34, 40), (37, 41), (61, 82)])
def test_one_kernel_of_a_library_replaced_by_a_slower_one(library: int, compiled: int) -> None:
    """Softmax over 131,072 columns: 16, 32 and 64 rows."""
    before = step(launch("softmax_forward", library, library="aten", role="softmax"))
    after = step(launch("triton_softmax", compiled, library="inductor", role="softmax"))
    assert len(judge_pair(before, after).regressions) == 1


def test_what_the_host_takes_more_is_no_loss_of_a_kernel() -> None:
    """One op compiled: its guards cost the host time, the kernel is as fast as before."""
    before, after = step(launch("entropy", 100)), step(launch("fused_entropy", 100))
    late = replace(after, span_ns=tuple(time + 80_000 for time in after.span_ns))
    found = judge_pair(before, late)
    assert not found.regressions
    assert [(share.cause, share.change_ns) for share in found.bisection.shares] == [
        ("launch_gaps", 80_000)
    ]


def test_spills_carry_the_unit_of_their_vendor() -> None:
    """An AMD kernel of 194 spilled vector registers, 4 bytes a lane each."""
    text = ".vgpr_count: 256\n.sgpr_count: 40\n.vgpr_spill_count: 194\n"
    found = read_amdgcn(text + ".private_segment_fixed_size: 780\n.group_segment_fixed_size: 0\n")
    assert (found.spill_store_bytes, found.local_bytes) == (776, 780)
    before = step(launch("first", 100), launch("second", 100))
    amd = KernelResources(
        gpu="mi300x", config="", registers=256, spill_store_bytes=found.spill_store_bytes
    )
    code = KernelCode(name="fused", num_warps=4, resources=amd)
    (lost,) = judge_pair(before, step(launch("fused", 500), codes=(code,))).regressions
    assert lost.cause == "register_spill"
    # All lanes of all programs, in bytes: no count of another vendor's unit.
    assert "776 bytes a thread" in lost.candidates[0].evidence.text
