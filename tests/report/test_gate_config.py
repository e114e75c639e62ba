"""Numbers that a gate's configuration cannot hold are refused in words."""

from __future__ import annotations

import pytest

from advisor.errors import UsageError
from advisor.report.gate_config import read_config

DIGITS = "1" * 400


@pytest.mark.parametrize(
    "text",
    [
        f"[[metric]]\nname = 'step_ns'\nmax = {DIGITS}",
        f"[[metric]]\nname = 'step_ns'\nmax = {20 * DIGITS}",
        f"[[metric]]\nname = 'step_ns'\nmin = -0x{20 * 'ffff'}",
        f"[[finding]]\nmax = {DIGITS}",
        f"[[finding]]\nmax = 0\nsaving_above_ns = 0x{DIGITS}",
        f"schema_version = {DIGITS}\n[[finding]]\nmax = 0",
        f"[[finding]]\nmax = 0\n[comparison]\nmin_score = {DIGITS}",
    ],
)
def test_integers_beyond_64_bits_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"gates\.toml: not a TOML file"):
        read_config(text.encode(), "gates.toml")


def test_the_largest_integers_of_toml_are_limits() -> None:
    config = read_config(f"[[finding]]\nmax = {2**63 - 1}".encode(), "gates.toml")
    assert config.finding[0].max == 2**63 - 1
