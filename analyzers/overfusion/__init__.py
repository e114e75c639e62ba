"""Did fusing hurt? Fused kernels paired with what they replaced, judged on time, explained."""
