"""`advisor.step()`: marks one step of a training or inference loop for `fusion-advisor profile`.

    with advisor.step():                     # a context manager,
        train(batch)

    for batch in advisor.step(loader):       # an iterator: a step is the body of the loop,
        train(batch)

    @advisor.step                            # a decorator: a step is a call
    def train(batch): ...

When nobody profiles, a mark costs less than a microsecond and does nothing. Marks within marks and
marks of other threads are no steps of their own.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Protocol, TypeVar, overload

Item = TypeVar("Item")
Function = TypeVar("Function", bound=Callable[..., Any])


class Listener(Protocol):
    """Told of every outermost step of the thread that installed it."""

    def enter(self) -> None:
        """A step begins."""

    def leave(self, completed: bool) -> None:
        """It ends; not `completed` if the body raised."""


class _Marks:
    """Who listens, and how deep in marks its thread is."""

    listener: Listener | None = None
    thread: int | None = None
    depth: int = 0


_MARKS = _Marks()


def listen(listener: Listener | None) -> None:
    """Tell `listener` of the steps of this thread from now on; None: nobody."""
    _MARKS.listener, _MARKS.thread, _MARKS.depth = listener, threading.get_ident(), 0


class Step:
    """One mark; as a context manager and, called with a function, as a decorator."""

    __slots__ = ()

    def __enter__(self) -> None:
        if _MARKS.listener is not None and _MARKS.thread == threading.get_ident():
            # Before the count: the listener may raise to end the program.
            if _MARKS.depth == 0:
                _MARKS.listener.enter()
            _MARKS.depth += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if _MARKS.listener is not None and _MARKS.thread == threading.get_ident():
            _MARKS.depth -= 1
            if _MARKS.depth == 0:
                _MARKS.listener.leave(kind is None)

    def __call__(self, function: Function) -> Function:
        return step(function)


_STEP = Step()


@overload
def step() -> Step: ...
@overload
def step(what: Function) -> Function: ...
@overload
def step(what: Iterable[Item]) -> Iterator[Item]: ...


def step(what: Any = None) -> Any:
    """Mark a step: without an argument to be used in `with`, else a function or an iterable."""
    if what is None:
        return _STEP
    return _marked(what) if callable(what) else _iterated(what)


def _marked(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def marked(*args: Any, **kwargs: Any) -> Any:
        with _STEP:
            return function(*args, **kwargs)

    return marked


def _iterated(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        with _STEP:
            yield item
