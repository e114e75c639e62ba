"""Names of ranges and ops in a trace that say where in a step one is: PyTorch's, and our own."""

from __future__ import annotations

# Steps are numbered: `ProfilerStep#3`, as by `torch.profiler.profile.step()`.
STEP_PREFIX = "ProfilerStep#"
# `Optimizer.step#AdamW.step`.
OPTIMIZER_STEP = "Optimizer.step"
# Around the autograd function behind it, in the backward pass.
GRADIENT_PREFIX = "autograd::engine::evaluate_function: "
COMPILED_REGION = "Torch-Compiled Region"
# The forward and the backward function that AOTAutograd makes of a compiled region.
COMPILED_FUNCTION = "CompiledFunction"
# What our recorder puts around the part of a step that was captured as graphs.
CAPTURED_RANGE = "fusion_advisor.captured"
# Inside an optimizer that evaluates the loss itself.
CLOSURE_RANGE = "fusion_advisor.closure"
