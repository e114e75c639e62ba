"""What the compiler does with its own kernels: which ops share one, and how each is launched."""
