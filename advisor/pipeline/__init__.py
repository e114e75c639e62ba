"""The spine: profile and apply, each readable on one screen, and the `torch.compile` backend."""
