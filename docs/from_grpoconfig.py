"""Write the table of from-grpoconfig.md for the installed TRL: `make defaults`."""

from __future__ import annotations

from dataclasses import MISSING, fields
from pathlib import Path

from trl.trainer.grpo_config import GRPOConfig

from grpo_tui.configs.trl_fields import OURS, PASSED, REFUSED

PAGE = Path(__file__).with_name("from-grpoconfig.md")


def page() -> str:
    """Return the page with one row for each field of `GRPOConfig`."""
    head, rule, _ = PAGE.read_text(encoding="utf-8").partition("|---|---|---|\n")
    rows = []
    for field in fields(GRPOConfig):
        if not field.init:
            continue
        name, default = field.name, "" if field.default is MISSING else f"`{field.default!r}`"
        place = f"`training.trl.{name}`" + (f": {PASSED[name]}" if PASSED.get(name) else "")
        if name in OURS:
            place = f"ours: {OURS[name]}"
        elif name in REFUSED:
            place = f"refused: {REFUSED[name]}"
        rows.append(f"| `{name}` | {default} | {place} |\n")
    return head + rule + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
