"""Fusion advisor: which operators to fuse, what each fusion is worth, proved on the workload.

Importing this package is cheap on purpose: nothing here imports torch, triton, pandas or dash.
"""

__version__ = "0.1.0"
