"""The ids of all rules, known without loading the rules themselves; a test holds them equal."""

from __future__ import annotations

RULE_IDS: tuple[str, ...] = (
    "launch-bound",
    "straggler-rank",
    "exposed-communication",
    "attention-written-out",
    "scan-written-out",
    "batch-norm",
    "rotary-written-out",
    "gated-mlp",
    "quantise-chain",
    "moe-combine",
    "row_program",
    "gemm-epilogue",
    "horizontal-group",
    "two-axes",
    "cross-entropy",
    "softmax-chain",
    "library-norm",
    "optimizer-updates",
    "layout-conversion",
    "pointwise-chain",
    "repeated-copies",
    "graph-break",
    "recompile",
    "over-fusion",
    "already-done",
)
