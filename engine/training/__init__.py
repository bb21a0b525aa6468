"""SFT, reinforcement fine-tuning on TRL, advantages, selective sample replay and checkpoints."""

from ...configs.errors import GrpoTuiError


class TrainingError(GrpoTuiError, ValueError):
    """Training cannot run as configured, or cannot continue. The message is one sentence for the user."""
