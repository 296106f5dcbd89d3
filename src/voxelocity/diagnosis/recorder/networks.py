"""What the networks of the program are called with: shapes, images, and whether they learn."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Callable

from .ledger import Ledger
from .windows import windows_around

_MAX_SHAPES = 64
_SYNCING = "DistributedDataParallel"


class Networks:
    """Looks at each outermost call of a module in the training thread.

    A module without parameters, such as a loss, is not a network: only its time counts, as forward.

    Attributes:
        look: called with (network, first tensor) at the next learning call, once; None for none.
        before_call: called before each call of a network; it may raise to end the program.
    """

    def __init__(self, torch: Any, ledger: Ledger) -> None:
        self.look: Callable[[Any, Any], None] | None = None
        self.before_call: Callable[[], None] = lambda: None
        self._torch = torch
        self._ledger = ledger
        self._is_network: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def called(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Notes a call that is about to be made. Costs about 3 microseconds."""
        if not self._has_parameters(module):
            return
        self.before_call()
        ledger, stretch = self._ledger, self._ledger.running
        is_evaluating = not module.training or not self._torch.is_grad_enabled()
        if is_evaluating:
            if stretch.label == "start":
                stretch = ledger.cut("forward")
            stretch.num_evaluating += 1
            stretch.has_gradients = stretch.has_gradients or self._torch.is_grad_enabled()
            if not ledger.mode and not stretch.num_backwards:
                ledger.mode = "validation"
        else:
            ledger.mode = ""
            if type(module).__name__ == _SYNCING and module.require_backward_grad_sync:
                stretch.num_synced += 1
        stretch.num_forwards += 1
        tensor = self._first_tensor((*args, *kwargs.values()))
        if is_evaluating and tensor is not None and stretch.num_evaluating == 1:
            try:
                stretch.windows = windows_around(sys._getframe(2), tensor.shape)
            except Exception:
                # The program's variables may run any code when inspected; the program must not notice.
                stretch.windows = None
        if tensor is not None and tensor.dim() > 0:
            shape = tuple(tensor.shape)
            stretch.num_images += shape[0]
            if shape in stretch.shapes or len(stretch.shapes) < _MAX_SHAPES:
                stretch.shapes[shape] = stretch.shapes.get(shape, 0) + 1
        if self.look is not None and not is_evaluating:
            look, self.look = self.look, None
            look(module, tensor)

    def _has_parameters(self, module: Any) -> bool:
        try:
            answer = self._is_network.get(module)
            if answer is None:
                answer = self._is_network[module] = next(module.parameters(), None) is not None
        except TypeError:
            answer = next(module.parameters(), None) is not None
        return answer

    def _first_tensor(self, values: Any, depth: int = 0) -> Any:
        for value in values:
            if isinstance(value, self._torch.Tensor):
                return value
            if depth < 3 and isinstance(value, (list, tuple)):
                found = self._first_tensor(value, depth + 1)
            elif depth < 3 and isinstance(value, dict):
                found = self._first_tensor(value.values(), depth + 1)
            else:
                continue
            if found is not None:
                return found
        return None
