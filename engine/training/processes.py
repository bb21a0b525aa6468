"""What the processes of a training say to each other; with one process nothing is said."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from accelerate import Accelerator
from accelerate.utils import broadcast_object_list, gather_object

T = TypeVar("T")


class Processes:
    """The processes of `accelerator`. All methods are collective: every process calls them in the same order."""

    def __init__(self, accelerator: Accelerator) -> None:
        self.number = accelerator.num_processes
        self.index = accelerator.process_index
        self.main = accelerator.is_main_process

    def gather(self, values: list[T]) -> list[T]:
        """The values of all processes, in order of processes; on every process."""
        return values if self.number == 1 else gather_object(values)

    def broadcast(self, value: T) -> T:
        """The main process's value, on every process."""
        return value if self.number == 1 else broadcast_object_list([value])[0]

    def share(self, values: Sequence[T], size: int) -> list[T]:
        """This process's `size` values of those that every process has."""
        return list(values[self.index * size : (self.index + 1) * size])
