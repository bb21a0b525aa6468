"""A screen whose scroll keys move the cursor of a table."""

from __future__ import annotations

from ..widgets.table import Table
from .base import AppScreen


class TableScreen(AppScreen):
    """A subclass creates `table`."""

    table: Table

    def action_scroll(self, by: int) -> None:
        self.table.move(by)

    def action_page(self, by: int) -> None:
        self.table.move(by * max(1, self.table.body_height - 1))

    def action_first(self) -> None:
        self.table.move_to(0)

    def action_last(self) -> None:
        self.table.move_to(self.table.total - 1)
