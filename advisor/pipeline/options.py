"""What `profile` was asked to do; known before torch is imported, kept in `run.json`."""

from __future__ import annotations

from advisor.model.base import Record


class ProfileOptions(Record, frozen=True, kw_only=True):
    """The arguments of `fusion-advisor profile`; `target` is as it was typed."""

    target: str
    mode: str = "eager"
    gpu: str | None = None
    steps: int = 20
    warmup: int = 3
    seed: int = 0
    ncu: bool = False

    def arguments(self) -> tuple[str, ...]:
        """The options as they would be typed, the target left out."""
        values = {name: getattr(self, name) for name in self.__struct_fields__ if name != "target"}
        given = [item for item in values.items() if item[1] is not None and item[1] is not False]
        return tuple(f"--{name}={value}" for name, value in given)
