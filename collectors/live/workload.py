"""A target on the command line as something that can be stepped, captured and compared.

`pkg.mod:factory`, `file.py:factory` and `sample:NAME[:factory]` name a factory without arguments
that returns one of

* `(module, inputs)`: an inference step; inputs are a tuple or a dict of (keyword) arguments;
* `(model, optimizer, loss)`: a training step, where `loss(model)` gives a scalar tensor;
* a callable without arguments: one whole step, whatever it does.

The factory runs with torch's default device set to the device, so tensors it creates are in the
right place.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import nn
from torch.utils import _pytree as pytree

from advisor.errors import AdvisorError, UsageError, WorkloadError
from advisor.samples import PREFIX
from collectors.live.closures import one_step
from collectors.live.failures import BY_ITSELF, failure
from collectors.live.loss_calls import LossOfParts, WithLoss, loss_of
from collectors.live.random_numbers import seed_all, seeded
from collectors.live.target import no_such_file, parse_target

Step = Callable[[], Any]
Part = Callable[..., Any] | WithLoss
Wrap = Callable[[Callable[..., Any]], Part]
Kind = Literal["inference", "training", "step"]
RESULTS_SEED = 0
HERE = Path()
MOST_NAMED = 8
EXPECTED = "return (module, inputs), (model, optimizer, loss) or a callable step"


@dataclass(frozen=True)
class Workload:
    """A loaded target; `step_of(wrap)` is a step whose compiled part is `wrap(part)`.

    A training step's may also be a `WithLoss`, compiled with the loss.
    """

    target: str
    kind: Kind
    device: torch.device
    part: Callable[..., Any]
    inputs: Any = ()
    optimizer: torch.optim.Optimizer | None = None
    loss: Callable[[Any], torch.Tensor] | None = None

    def step_of(self, wrap: Wrap | None = None) -> Step:
        """The step as it is timed; `wrap` is `torch.compile(..., backend=…)` or None for eager.

        Whatever the user's code raises comes out as `WorkloadError`.
        """
        part: Part = self.part if wrap is None else wrap(self.part)
        bodies = {"inference": self._infer, "training": self._train, "step": self._call}
        body = bodies[self.kind]
        return lambda: self._guarded(body, part)

    def results_of(self, wrap: Wrap | None = None) -> list[torch.Tensor]:
        """What two variants must agree on: outputs, or the loss and every parameter's gradient.

        Every call starts from the same random numbers, buffers and inputs, and leaves them alone.
        """
        part: Part = self.part if wrap is None else wrap(self.part)
        with seeded(self.device, RESULTS_SEED), self.preserved():
            if self.kind != "training":
                body = self._infer if self.kind == "inference" else self._call
                # Copies: a result may be a buffer, or memory that the next replay writes.
                return [tensor.clone() for tensor in tensors(self._guarded(body, part))]
            optimizer, loss = self._guarded(self._backward, part)
            gradients = copies_of(gradients_of(optimizer))
            optimizer.zero_grad(set_to_none=True)
            return [loss.detach().clone(), *gradients]

    @contextlib.contextmanager
    def preserved(self) -> Iterator[None]:
        """Give the module's buffers and the inputs back the values they came with."""
        buffers = list(self.part.buffers()) if isinstance(self.part, nn.Module) else []
        state = [t for t in (*buffers, *tensors(self.inputs)) if is_writable(t)]
        held = [tensor.detach().clone() for tensor in state]
        try:
            yield
        finally:
            with torch.no_grad():
                for tensor, value in zip(state, held, strict=True):
                    tensor.copy_(value)

    def shapes(self) -> tuple[str, ...]:
        """The input tensors as text: `float32[2, 512, 1024]`."""
        return tuple(shape_text(t) for t in tensors(self.inputs))

    def _guarded(self, body: Callable[[Any], Any], part: Part) -> Any:
        try:
            return body(part)
        except AdvisorError:
            raise
        except (Exception, SystemExit) as error:  # the user's code may raise anything: reported
            raise failure(
                "the step failed",
                error,
                where=self.target,
                remedy="run it once without the advisor to see the whole traceback",
            ) from error

    def arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What an inference step calls its module with: (positional, keyword)."""
        if isinstance(self.inputs, dict):
            return (), dict(self.inputs)
        return tuple(self.inputs), {}

    def _infer(self, part: Callable[..., Any]) -> Any:
        args, kwargs = self.arguments()
        with torch.no_grad():
            return part(*args, **kwargs)

    def _call(self, part: Callable[..., Any]) -> Any:
        result = part()
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
            raise WorkloadError(
                f"the step only made a {type(result).__name__}",
                where=self.target,
                why="nobody runs it, so nothing was computed",
                remedy="run it to its end within the step",
            )
        return result

    def _train(self, part: Part) -> Any:
        if self.optimizer is None:
            return self._backward(part)
        return one_step(self.optimizer, lambda: self._backward(part)[1])

    def _backward(self, part: Part) -> tuple[torch.optim.Optimizer, torch.Tensor]:
        """The loss, with fresh gradients in the optimizer's parameters."""
        if self.optimizer is None or self.loss is None:
            raise WorkloadError("no optimizer or no loss to train with", where=self.target)
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.loss, part)
        loss.backward()
        return self.optimizer, loss


def tensors(tree: Any) -> list[torch.Tensor]:
    """The tensors of any nested structure (dataclasses of model libraries included), in order."""
    if hasattr(tree, "to_tuple"):
        tree = tree.to_tuple()
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def gradients_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients that there are, where they lie now."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    return [p.grad.detach() for p in parameters if p.grad is not None]


def copies_of(gradients: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copies of gradients, of a sparse one its indices and values."""
    found: list[torch.Tensor] = []
    for gradient in gradients:
        if gradient.layout == torch.sparse_coo:
            # As of an embedding: as large as the rows that were looked up, not as the table.
            summed = gradient.coalesce()
            found += [summed.indices().clone(), summed.values().clone()]
        else:
            found.append(gradient.clone())
    return found


def shape_text(tensor: torch.Tensor) -> str:
    """Type and shape: `float32[2, 512, 1024]`; a nested tensor has one a part."""
    shape = "nested" if tensor.is_nested else ", ".join(map(str, tensor.shape))
    return f"{str(tensor.dtype).removeprefix('torch.')}[{shape}]"


def is_writable(tensor: torch.Tensor) -> bool:
    """Whether all of it can be written in place: not what repeats in memory."""
    if tensor.is_nested or tensor.is_meta:
        return False
    return tensor.layout != torch.strided or 0 not in tensor.stride()


def load_workload(
    target: str, device: torch.device, *, seed: int = 0, directory: Path = HERE
) -> Workload:
    """Import a target and call its factory; failures of the user's code become `WorkloadError`.

    Relative files and modules are looked for from `directory`. A file, which is executed for every
    copy, and its factory each begin with the random numbers of `seed`. A factory that makes the
    process group of its job may be called again: the group that it made stays.
    """
    with _one_group():
        seed_all(seed)
        factory = _factory(target, directory)
        seed_all(seed)
        return _made_by(factory, target, device)


def _made_by(factory: Callable[[], Any], target: str, device: torch.device) -> Workload:
    try:
        with device:
            made = factory()
        return _workload(target, made, device)
    except AdvisorError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything: it is reported
        raise failure(
            "the factory failed",
            error,
            where=target,
            remedy=f"it must run on {device.type} and {EXPECTED}",
        ) from error


@contextlib.contextmanager
def _one_group() -> Iterator[None]:
    """While a process group exists, let `init_process_group` leave it as it is."""
    if not (dist.is_available() and dist.is_initialized()):
        yield
        return
    original = dist.init_process_group
    dist.init_process_group = lambda *_, **__: None
    try:
        yield
    finally:
        dist.init_process_group = original


def _workload(target: str, made: Any, device: torch.device) -> Workload:
    if isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module):
        module, given = made
        inputs = pytree.tree_map(
            lambda x: x.to(device) if isinstance(x, torch.Tensor) else x, _inputs(given, target)
        )
        return Workload(target, "inference", device, module.to(device), inputs=inputs)
    if _is_training(made):
        model, optimizer, loss = made
        loss = LossOfParts(loss)
        return Workload(
            target, "training", device, model.to(device), optimizer=optimizer, loss=loss
        )
    if callable(made) and not isinstance(made, (nn.Module, type)):
        return Workload(target, "step", device, made)
    raise UsageError(
        "the factory returned something else",
        where=target,
        why=_described(made),
        remedy=EXPECTED,
    )


def _inputs(given: Any, target: str) -> Any:
    """A module's arguments; mappings of other libraries (a tokenizer's, say) become a dict."""
    if isinstance(given, torch.Tensor):
        return (given,)
    if isinstance(given, Mapping):
        return dict(given)
    if isinstance(given, (tuple, list)):
        return given
    raise UsageError(
        "the inputs of the module are something else",
        where=target,
        why=_described(given),
        remedy="return (module, inputs) with a tensor, a tuple or a dict of keyword arguments",
    )


def _described(made: Any) -> str:
    """What a value is: its type, and for a tuple those of its items."""
    if isinstance(made, tuple):
        return f"a tuple of ({', '.join(type(item).__name__ for item in made)})"
    return f"an object of type {type(made).__name__}"


def _is_training(made: Any) -> bool:
    if not isinstance(made, tuple) or len(made) != 3:
        return False
    model, optimizer, loss = made
    return (
        isinstance(model, nn.Module)
        and isinstance(optimizer, torch.optim.Optimizer)
        and callable(loss)
    )


def _factory(target: str, directory: Path) -> Callable[[], Any]:
    parsed = parse_target(target)
    if parsed.factory is None:
        raise UsageError(
            "a script is no factory", where=target, remedy="name the factory: file.py:factory"
        )
    if target.startswith(PREFIX):
        module = importlib.import_module(parsed.place)
    elif parsed.file is not None:
        module = _module_of_file(directory / parsed.file, target)
    else:
        module = _module_by_name(parsed.place, target, directory)
    return _attribute(module, parsed.factory, target)


def _attribute(module: Any, attribute: str, target: str) -> Callable[[], Any]:
    factory: Callable[[], Any] | None = getattr(module, attribute, None)
    if not callable(factory):
        raise UsageError(
            f"{module.__name__} has no factory {attribute!r}",
            where=target,
            remedy=_functions_of(module),
        )
    return factory


def _functions_of(module: Any) -> str:
    """What may be meant instead: the public functions that a module defines itself."""
    found = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and name[0] != "_"
    ]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return f"it defines {', '.join(found[:MOST_NAMED])}{more}" if found else ""


def _module_of_file(path: Path, target: str) -> Any:
    if not path.is_file():
        raise no_such_file(path)
    # A file named like a module in use must not take its place.
    name = f"fusion_advisor_target_{path.stem}" if path.stem in sys.modules else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError("not a Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    sys.path.insert(0, str(path.resolve().parent))
    _imported(partial(spec.loader.exec_module, module), target)
    return module


def _module_by_name(name: str, target: str, directory: Path) -> Any:
    entry = "" if directory == HERE else str(directory)
    if entry not in sys.path:
        sys.path.insert(0, entry)
    try:
        return _imported(lambda: importlib.import_module(name), target)
    except WorkloadError as error:
        cause = error.__cause__
        missing = cause.name if isinstance(cause, ModuleNotFoundError) else None
        if missing is not None and f"{name}.".startswith(f"{missing}."):
            raise UsageError(
                f"no module {name!r}", where=target, remedy="check the spelling, or give a file.py"
            ) from error
        raise


def _imported(load: Callable[[], Any], target: str) -> Any:
    try:
        return load()
    except (Exception, SystemExit) as error:  # importing runs the user's code
        what = "the target cannot be imported"
        raise failure(what, error, where=target, remedy=BY_ITSELF) from error
