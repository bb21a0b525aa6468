"""Loading the processor of a vision-language model."""

from __future__ import annotations

from typing import Any

from transformers import AutoProcessor, PreTrainedConfig, ProcessorMixin
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING

from .processor import VisionError


def load_processor(source: str, revision: str | None, config: PreTrainedConfig) -> ProcessorMixin:
    """Load the processor at `source` (a folder or hub id). Raises VisionError and the errors of loading."""
    pinned: dict[str, Any] = {"trust_remote_code": False} | ({} if revision is None else {"revision": revision})
    try:
        processor: Any = AutoProcessor.from_pretrained(source, **pinned)
    except (ImportError, OSError):  # its part for videos wants torchvision, or was never saved
        if type(config) not in PROCESSOR_MAPPING:
            raise
        kind: Any = PROCESSOR_MAPPING[type(config)]
        processor = without_video(kind).from_pretrained(source, **pinned)
    if not isinstance(processor, ProcessorMixin):
        raise VisionError(f"{source} has no processor for images: a {type(processor).__name__} is all that is there")
    return processor


def without_video(kind: type[ProcessorMixin]) -> type[ProcessorMixin]:
    """Remove the processor's part for videos, which needs torchvision. Frames are shown as images."""
    kept = [name for name in kind.get_attributes() if name != "video_processor"]
    if len(kept) == len(kind.get_attributes()):
        return kind
    members = {"get_attributes": classmethod(lambda cls: kept), "__module__": kind.__module__}
    return type(kind.__name__, (kind,), members)
