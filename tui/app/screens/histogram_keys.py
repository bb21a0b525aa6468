"""The histogram above a list: its value, and its bars, which filter the list."""

from __future__ import annotations

import re
from dataclasses import replace

from ....engine.runs.errors import RecordError
from ....engine.runs.search.query import EVERYTHING, Query
from ..data import Reads
from ..widgets.list_panels import HistogramPane
from ..widgets.pane import Pane
from .query_list import QueryList

VALUES = {"reward": "rewards", "tokens": "tokens", "turns": "turns"}
"""Columns that the histogram can show, with their display names."""
_BINS = 24


class HistogramKeys(QueryList):
    """A chosen bar joins the filter as a range. The histogram keeps the other bars, for moving on to them."""

    def __init__(self, reads: Reads, query: Query = EVERYTHING) -> None:
        super().__init__(reads, query)
        self.histogram = HistogramPane()
        self.histogram_wanted = True
        self.counted = "reward"
        """The column to count."""
        self.shown = "reward"
        """The counted column: the next one with values if no rollout has a value in `counted`."""
        self._before = ""
        """The filter without the chosen bar."""
        self._chosen: tuple[int, str] | None = None
        """The chosen bar, and the filter with it."""

    @property
    def chosen_bar(self) -> int | None:
        """Return the chosen bar, unless another filter replaced it."""
        return self._chosen[0] if self._chosen is not None and self._chosen[1] == self.list_query.filter else None

    def remember_histogram(self, possible: bool) -> None:
        kept = self.shell.memory.run(self.reads.path.name)
        self.histogram_wanted = possible and kept.get("histogram", True) is not False
        self.counted = next((name for name in VALUES if name == kept.get("counted")), "reward")

    async def read_bins(self) -> None:
        """Count the bars of the list, as if no bar was chosen."""
        if not self.histogram_wanted:
            return
        query, column, chosen = self.list_query, self.counted, self.chosen_bar
        base = query if chosen is None else replace(query, filter=self._before)
        shown, bins = column, []
        try:
            for shown in dict.fromkeys([column, *VALUES]):
                bins = await self.reads.later(lambda r, c=shown: r.rollouts.histogram(base, column=c, bins=_BINS))
                if bins:
                    break
        except RecordError:
            return
        if (query, column) == (self.list_query, self.counted):
            self.shown = shown if bins else column
            self.histogram.put(list(bins), chosen, VALUES[self.shown])
            self.frame.refresh_lines()

    def action_histogram(self) -> None:
        self.histogram_wanted = not self.histogram_wanted
        self.shell.memory.run(self.reads.path.name)["histogram"] = self.histogram_wanted
        self.frame.replan()
        self.run_worker(self.read_bins(), group="bins")

    def action_next_value(self) -> None:
        names = list(VALUES)
        self.counted = names[(names.index(self.shown) + 1) % len(names)]
        self._chosen = None
        self.shell.memory.run(self.reads.path.name)["counted"] = self.counted
        if not self.histogram_wanted:
            self.action_histogram()
        self.run_worker(self.read_bins(), group="bins", exclusive=True)

    def action_bar(self, by: int) -> None:
        """Choose the next bar with rollouts. After the last one, show the whole list again."""
        chosen = self.chosen_bar
        filled = [i for i, (_, _, n) in enumerate(self.histogram.bins) if n]
        later = [i for i in filled if chosen is None or (i > chosen if by > 0 else i < chosen)]
        if later:
            self.choose_bar(later[0] if by > 0 else later[-1])
        elif chosen is not None:
            self.choose_bar(chosen)

    def choose_bar(self, index: int) -> None:
        """Filter by a bar. Choosing the same bar again removes its range from the filter."""
        chosen, bins = self.chosen_bar, self.histogram.bins
        if chosen is None:
            self._before = self.list_query.filter
        self.histogram.put(bins, None if index == chosen else index, VALUES[self.shown])
        if index == chosen:
            self._chosen = None
            self.set_query(keep=True, filter=self._before)
            return
        (low, high, _), last = bins[index], index == len(bins) - 1
        part = f"{self.shown}>={_edge(low, -1 if not index else 0)} and "
        part += f"{self.shown}{'<=' if last else '<'}{_edge(high, int(last))}"
        base = f"({self._before})" if re.search(r"\bor\b", self._before, re.I) else self._before
        filter = f"{base} and {part}" if base else part
        self._chosen = index, filter
        self.set_query(keep=True, filter=filter)

    def on_pane_hit(self, message: Pane.Hit) -> None:
        match message.what:
            case ("bin", int(index)):
                self.choose_bar(index)


def _edge(value: float, outwards: int) -> str:
    """Format an edge in six digits. The outermost edges are rounded outwards, so that no rollout is lost."""
    text = f"{value:.6g}"
    if outwards and (float(text) - value) * outwards < 0:
        text = f"{value + outwards * abs(value) * 1e-5:.6g}"
    return text
