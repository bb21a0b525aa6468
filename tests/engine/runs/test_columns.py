"""The table of columns: one more entry reaches the tables, filters, orders, pages and the index of a dump."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.options import Options
from grpo_tui.engine.runs.read.reader import RunReader

ADDED = """
import sys
from pathlib import Path
from grpo_tui.engine.runs import columns

newest = columns.SCHEMA_VERSION
columns.COLUMNS = (
    *columns.COLUMNS,
    columns.Column(
        "seconds", "REAL", lambda r: r.trajectory.seconds, numeric=True, sortable=True, title="sec"
    ),
)
columns.SCHEMA_VERSION = newest + 1
columns.SORTS = (*columns.SORTS, "seconds")

from grpo_tui.engine.imports.index import Indexer
from grpo_tui.engine.imports.options import Options
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.types import Trajectory, TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter
from grpo_tui.tui.app.rollout_columns import rollout_columns
from grpo_tui.tui.app.theme import DEFAULT_THEME, THEMES, Palette

folder, dump = Path(sys.argv[1]), Path(sys.argv[2])
writer = RunWriter(folder / "run")
records = [
    TrajectoryRecord(Trajectory(f"t{i}", "e", "p", "g", i, "prompt", (), seconds=seconds))
    for i, seconds in enumerate((3.0, 1.0, 2.0))
]
writer.trajectories(1, records)
assert writer.flush(20)
writer.close()
with RunReader(folder / "run") as reader:
    rows = reader.rollouts.page(Query(sort="seconds"))
    assert [row.extra["seconds"] for row in rows] == [1.0, 2.0, 3.0]
    slow = Query("seconds>1.5", sort="seconds", descending=True)
    assert [row.id for row in reader.rollouts.page(slow)] == ["t0", "t2"]
    assert reader.rollouts.histogram(column="seconds", bins=2) == [(1.0, 2.0, 1), (2.0, 3.0, 2)]
    shown = next(c for c in rollout_columns(Palette(THEMES[DEFAULT_THEME]), (), rows) if c.title == "sec")
    assert (shown.name, shown.cell(rows[0])[0]) == ("seconds", "1.00")
with Indexer(dump, folder / "index", Options()) as indexer:  # an index of the version before: made again
    indexer.advance()
    assert indexer.store.last_n() == 2
with RunReader(folder / "index") as reader:
    assert reader.problems == [] and reader.rollouts.count(Query("seconds>1")) == 0
    assert [row.reward for row in reader.rollouts.page(Query(sort="seconds"))] == [0.0, 1.0]
print("followed")
"""


def test_one_more_column_is_one_more_entry(tmp_path: Path):
    dump = tmp_path / "dump.jsonl"
    messages = [{"role": "user", "content": "1 + 1?"}, {"role": "assistant", "content": "2"}]
    dump.write_text(
        "".join(json.dumps({"messages": messages, "reward": float(i), "id": f"r{i}"}) + "\n" for i in range(2))
    )
    with Indexer(dump, tmp_path / "index", Options()) as indexer:
        indexer.advance()
    with RunReader(tmp_path / "index") as reader:
        assert reader.rollouts.total() == 2
    done = subprocess.run(
        [sys.executable, "-c", ADDED, str(tmp_path), str(dump)], capture_output=True, text=True, timeout=120
    )
    assert done.stdout.strip() == "followed", done.stderr
