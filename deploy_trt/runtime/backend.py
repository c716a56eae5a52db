"""What runs the graphs. A backend keeps values where it computes; only `put` and `get` move them."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from deploy_trt.runtime.weights import Array

Value = Any  # of one backend: an OrtValue, a device buffer


class Backend(ABC):
    """Runs named graphs. One instance belongs to one thread."""

    name: str

    @abstractmethod
    def put(self, array: Array) -> Value:
        """Move an array to where the backend computes."""

    @abstractmethod
    def get(self, value: Value) -> Array:
        """Move a value back."""

    @abstractmethod
    def run(self, graph: str, feeds: Mapping[str, Value]) -> dict[str, Value]:
        """Run a graph once: input name -> value, gives output name -> value, valid until the graph runs again."""

    def integrate(self, start: Array, fixed: Mapping[str, Value], stepped: Sequence[Mapping[str, Value]]) -> Array:
        """Run graph ``step`` so often as ``stepped`` has entries, its ``next_actions`` becoming its ``actions``.

        Args:
            start: float32 [1, H, A], as the result.
            fixed: The inputs that are the same in all steps.
            stepped: The inputs that change, one mapping per step.
        """
        actions = self.put(start)
        for inputs in stepped:
            actions = self.run("step", {"actions": actions, **fixed, **inputs})["next_actions"]
        return self.get(actions)
