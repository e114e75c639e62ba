"""The recommended set: its order, and a saving that is possible."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from advisor.model.base import Range
from advisor.model.findings import Evidence, Finding, Kind
from analyzers.balance import Balance
from analyzers.recommendation import recommend

MOST = 10_000_000
balances = st.builds(
    Balance,
    device_ns=st.integers(1, MOST),
    span_ns=st.integers(1, MOST),
    clean=st.booleans(),
)


def finding(
    name: str, exposed: Range | None, kernel_ns: int = 0, kind: Kind = "opportunity"
) -> Finding:
    proof = Evidence(kind="time", text="", values={"kernel_saving_ns": kernel_ns})
    return Finding(
        id=name,
        rule="r",
        kind=kind,
        title=name,
        exposed_saving_ns=exposed,
        evidence=(proof,),
        provenance="exact",
        action="",
    )


def of(mid: int) -> Range:
    return Range(low=mid // 2, mid=mid, high=2 * mid)


def test_the_largest_exposed_saving_comes_first_and_the_unpriced_follow_by_kernel_time() -> None:
    found = recommend(
        (
            finding("unknown-small", None, 10),
            finding("small", of(5)),
            finding("unknown-large", None, 1_000),
            finding("nothing", of(0)),
            finding("aside", of(900), kind="note"),
            finding("large", of(50)),
        ),
        None,
    )
    assert found.order == ("large", "small", "unknown-large", "unknown-small")
    assert found.set_saving_ns is None


@given(balances, st.lists(st.integers(1, MOST), min_size=1, max_size=6))
def test_a_set_saves_what_is_possible(balance: Balance, kernels: list[int]) -> None:
    found = [
        finding(f"f{place}", balance.exposed(of(time), 0), time)
        for place, time in enumerate(kernels)
    ]
    together = recommend(found, balance).set_saving_ns
    savings = [item.exposed_saving_ns for item in found if item.exposed_saving_ns]
    worth = [saving for saving in savings if saving.mid > 0]
    if not worth:
        assert together is None
        return
    assert together is not None
    together.check()
    assert max(s.mid for s in worth) <= together.mid <= sum(s.mid for s in worth)
    assert together.mid <= max(balance.device_ns, balance.span_ns)
    assert together.high <= max(balance.device_ns, balance.span_ns, together.mid)


def test_on_a_busy_gpu_a_set_saves_the_sum_and_on_an_idle_one_not_more_than_the_host_waits() -> (
    None
):
    findings = (finding("a", of(30_000), 30_000), finding("b", of(40_000), 40_000))
    busy = recommend(findings, Balance(device_ns=100_000, span_ns=100_000, clean=True))
    assert busy.set_saving_ns == Range(low=20_000, mid=70_000, high=100_000)
    # Both promise the wait of the host; it goes once.
    idle = Balance(device_ns=10_000, span_ns=60_000, clean=True)
    host = (finding("a", of(40_000)), finding("b", of(40_000)))
    assert recommend(host, idle).set_saving_ns == Range(low=20_000, mid=50_000, high=60_000)
