"""Puts proved kernels into a captured graph, and judges what that was worth."""
