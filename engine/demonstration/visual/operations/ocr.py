"""READ_TEXT: recognise the text in a box, with the model from rapidocr's wheel.

Only the recogniser runs, directly on onnxruntime. The box gives the location, so detection, which takes ten times as
long, is not needed. The package's own front end pads every crop to 320 pixels, three to five times the work for a word,
and imports OpenCV.
"""

from __future__ import annotations

import importlib.util
import threading
from pathlib import Path
from typing import Any

import numpy as np
from cachetools import cached
from PIL import Image

from .....configs.errors import GrpoTuiError

HEIGHT = 48
"""Size of the recogniser's input, in pixels."""


class OcrUnavailableError(GrpoTuiError, RuntimeError):
    """Text recognition is not available. The message names the fix."""


def read_text(image: np.ndarray, box: tuple[int, int, int, int]) -> str:
    """Return the text in `[x0, y0, x1, y1]` of a uint8 [H, W, 3] picture, or an empty text if none is readable.

    Raises OcrUnavailableError.
    """
    x0, y0, x1, y1 = box
    crop = image[max(0, y0) : y1, max(0, x0) : x1]
    if crop.shape[0] < 3 or crop.shape[1] < 3:
        return ""
    text, confidence = recognise(crop)
    return text if confidence >= 0.75 else ""


def recognise(crop: np.ndarray) -> tuple[str, float]:
    """Read one line of text in a uint8 [h, w, 3] picture. Returns it and the mean probability of its characters, in
    0..1."""
    session, characters = _model()
    height, width = crop.shape[:2]
    # Widths are multiples of 16, because onnxruntime plans its memory again for each new shape.
    target = min(960, max(16, round(width * HEIGHT / height)))
    padded = -(-target // 16) * 16
    resized = np.asarray(Image.fromarray(crop).resize((target, HEIGHT), Image.Resampling.BILINEAR))
    canvas = np.zeros((1, 3, HEIGHT, padded), dtype=np.float32)
    # The recogniser was trained on BGR in -1..1, with zeros to the right of the text.
    canvas[0, :, :, :target] = resized[:, :, ::-1].transpose(2, 0, 1).astype(np.float32) / 127.5 - 1.0
    probabilities = session.run(None, {session.get_inputs()[0].name: canvas})[0][0]
    return _decode(probabilities, characters)


def _decode(probabilities: np.ndarray, characters: list[str]) -> tuple[str, float]:
    """Decode by greedy CTC: merge repeats, drop blanks (class 0). probabilities: float [frames, classes]."""
    best = probabilities.argmax(-1)
    kept = (best != 0) & np.concatenate([[True], best[1:] != best[:-1]])
    if not kept.any():
        return "", 0.0
    text = "".join(characters[i] for i in best[kept])
    return text.strip(), float(probabilities.max(-1)[kept].mean())


def model_path() -> Path:
    """Return the path of the recogniser's model. Raises OcrUnavailableError."""
    found = importlib.util.find_spec("rapidocr")  # imports neither rapidocr nor OpenCV
    if found is None or not found.submodule_search_locations:
        raise OcrUnavailableError("READ_TEXT needs rapidocr: pip install rapidocr")
    folder = Path(next(iter(found.submodule_search_locations))) / "models"
    models = sorted(folder.glob("*_rec_*.onnx"))
    if not models:
        raise OcrUnavailableError(f"rapidocr has no recogniser in {folder}; install its wheel again")
    return models[0]


@cached({}, condition=threading.Condition())
def _model() -> tuple[Any, list[str]]:
    path = model_path()
    try:
        import onnxruntime
    except ImportError as problem:
        raise OcrUnavailableError(f"READ_TEXT needs onnxruntime: {problem}") from problem
    options = onnxruntime.SessionOptions()
    # Use one thread without spinning: the policy's threads need the cores, and a word takes a few milliseconds.
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    characters = ["", *session.get_modelmeta().custom_metadata_map["character"].split("\n"), " "]
    classes = session.get_outputs()[0].shape[-1]
    if classes != len(characters):
        raise OcrUnavailableError(
            f"{path.name} has {classes} classes but {len(characters)} names, which is not supported"
        )
    return session, characters
