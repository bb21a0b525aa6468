"""Where a person wants alerts of their runs sent: `alerts` in `~/.config/grpo-tui/config.yaml`."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..runs.control.alerts import AlertSender

log = logging.getLogger(__name__)


def alert_sender(run_dir: Path) -> AlertSender | None:
    """Return the sender of a run's alerts; None if the user asked for none. A mistake in the settings is logged and
    costs only the alerts."""
    from ...configs.location import personal_path

    if not personal_path().is_file():
        return None
    from ...configs.personal import load_personal
    from ...configs.problems import ConfigError
    from ..runs.control.alerts import AlertSender, Destination

    try:
        wanted = load_personal().alerts
    except ConfigError as error:
        log.warning("no alerts are sent: %s", error)
        return None
    if not wanted.command and not wanted.webhook:
        return None
    return AlertSender(
        run_dir, Destination(tuple(wanted.command), wanted.webhook, tuple(wanted.grades), wanted.every_seconds)
    )
