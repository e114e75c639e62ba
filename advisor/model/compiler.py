"""What the compiler says of its own work: where it left the graph, why it compiled again."""

from __future__ import annotations

from advisor.model.base import Location, Record
from advisor.model.overfusion import KernelCode


class GraphBreak(Record, frozen=True, kw_only=True):
    """A place where the compiler left the graph.

    `hint` is the compiler's own first advice, where it gives one; `count` how often it broke here.
    `left_to_eager` are the functions, each with where it begins, of which it compiled nothing
    therefore.
    """

    location: Location
    function: str | None = None
    reason: str
    hint: str | None = None
    count: int = 1
    left_to_eager: tuple[str, ...] = ()


class Recompile(Record, frozen=True, kw_only=True):
    """A function compiled again because a guard failed.

    `location` is the line that the guard comes from, or where the function begins.
    """

    location: Location
    function: str | None = None
    guard: str
    count: int = 1


class GeneratedKernel(Record, frozen=True, kw_only=True):
    """Resources of one generated kernel, in the configuration that the compiler chose.

    `local_bytes_per_thread` is local memory (stack, slow paths, spills), not spills alone; `code`
    its source and launch, where they are known.
    """

    name: str
    registers_per_thread: int | None = None
    local_bytes_per_thread: int | None = None
    shared_bytes: int | None = None
    code: KernelCode | None = None


class CompilerFacts(Record, frozen=True, kw_only=True):
    """The compiler's counters over a window.

    `compile_ns` is the time inside the compiler, forward and backward; the phases lie within it and
    within each other (`code_gen` in `inductor_compile` in `backend_compile`). Cache lookups are
    those of compiled FX graphs and of AOTAutograd's results. `written` are Triton kernels of the
    program itself.
    """

    graph_breaks: tuple[GraphBreak, ...] = ()
    recompiles: tuple[Recompile, ...] = ()
    compile_ns: int = 0
    phases_ns: dict[str, int] = {}
    cache_hits: int = 0
    cache_misses: int = 0
    kernels: tuple[GeneratedKernel, ...] = ()
    written: tuple[KernelCode, ...] = ()

    def codes(self) -> tuple[KernelCode, ...]:
        """What is known of the source and launch of kernels, the compiler's and the program's."""
        generated = [kernel.code for kernel in self.kernels if kernel.code is not None]
        names = {code.name for code in generated}
        return (*generated, *(code for code in self.written if code.name not in names))

    @property
    def break_places(self) -> int:
        """The lines at which the compiler left the graph; what has none counts by itself."""
        lines = [(item.location.file, item.location.line) for item in self.graph_breaks]
        return len({line for line in lines if line[0]}) + sum(not line[0] for line in lines)

    @property
    def cache_hit_fraction(self) -> float | None:
        """Hits over lookups; None if nothing was looked up (caches off, nothing compiled)."""
        lookups = self.cache_hits + self.cache_misses
        return self.cache_hits / lookups if lookups else None
