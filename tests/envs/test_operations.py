"""The tools on drawn scenes against ground truth, on real photographs, and apart from anything but pixels."""

import ast
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy import ndimage
from skimage import filters, measure

from benchmarks.environment import true_mask
from grpo_tui.engine.demonstration.visual.operations import ocr, properties, segment, track, zoom
from grpo_tui.engine.demonstration.visual.questions import make_question
from grpo_tui.engine.demonstration.visual.render import photo_path, render
from grpo_tui.engine.demonstration.visual.scenes import SceneOptions

BACKGROUNDS = pytest.mark.parametrize("background", ["plain", "photo"])


def photo(name: str) -> np.ndarray:
    return np.asarray(Image.open(photo_path(name)).convert("RGB"))


def questions(kind: str, background: str, n: int):
    options = SceneOptions(photo_share=float(background == "photo"), split="eval")
    return [make_question("eval", 11, index, (kind,), options) for index in range(n)]


def iou(mask: np.ndarray | None, truth: np.ndarray) -> float:
    return 0.0 if mask is None else float((mask & truth).sum() / (mask | truth).sum())


# ------------------------------------------------------------------------------------------------ drawn scenes


@BACKGROUNDS
def test_masks_and_properties_of_held_out_scenes(background: str):
    found = []
    for question in questions("shape", background, 25):
        image = render(question.scene)[0]
        mask = segment.segment_at(image, *question.points[0])
        truth, shape = true_mask(question.scene, 0), question.scene.objects[0]
        assert mask is not None and mask.dtype == bool and mask.shape == truth.shape
        found.append((iou(mask, truth), properties.properties_of(image, mask), shape, truth))
    assert min(f[0] for f in found) >= 0.9
    assert all(p.colour == shape.colour for _, p, shape, _ in found)
    assert sum(p.shape == shape.shape for _, p, shape, _ in found) >= 24
    for _, seen, shape, truth in found:
        assert abs(seen.area - truth.sum()) <= 0.1 * truth.sum()
        assert np.hypot(seen.x + 0.5 - shape.x, seen.y + 0.5 - shape.y) < 1.0


@BACKGROUNDS
def test_text_of_held_out_scenes(background: str):
    read = []
    for question in questions("text", background, 20):
        assert question.box is not None
        read.append(ocr.read_text(render(question.scene)[0], question.box) == question.answer)
    assert np.mean(read) >= 0.95


@BACKGROUNDS
def test_tracks_of_held_out_videos(background: str):
    for question in questions("motion", background, 20):
        frames, shape = render(question.scene), question.scene.objects[0]
        mask = segment.segment_at(frames[0], *question.points[0])
        assert mask is not None
        found = track.track_object(frames, mask)
        truth = np.array([shape.at(f) for f in range(len(frames))]) - 0.5  # pixel i covers i..i+1
        assert np.hypot(*(np.array(found.positions) - truth).T).max() <= 2.0
        assert found.direction == question.answer


@BACKGROUNDS
def test_zooming_in_finds_the_object(background: str):
    hits = []
    for question in questions("inside", background, 20):
        assert question.box is not None
        image, truth = render(question.scene)[0], true_mask(question.scene, 0)
        points = zoom.objects_in(image, question.box)
        hits.append(bool(points) and bool(truth[points[0][1], points[0][0]]))
        enlarged = zoom.crop(image, question.box)
        assert enlarged.dtype == np.uint8 and max(enlarged.shape) >= 64
    assert sum(hits) >= 19


def test_nothing_is_found_where_there_is_nothing():
    image = np.full((96, 96, 3), 130, np.uint8)
    assert segment.segment_at(image, 40, 40) is None
    assert segment.segment_at(image, 200, 40) is None
    assert ocr.read_text(image, (10, 10, 60, 30)) == ""
    assert ocr.read_text(image, (10, 10, 11, 12)) == ""
    assert zoom.objects_in(image, (10, 10, 60, 60)) == ()
    with pytest.raises(ValueError, match="empty"):
        properties.properties_of(image, np.zeros((96, 96), bool))
    with pytest.raises(ValueError, match="empty"):
        track.track_object(image[None], np.zeros((96, 96), bool))


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 2**32 - 1),
    st.integers(8, 60),
    st.integers(8, 60),
    st.integers(0, 59),
    st.integers(0, 59),
    st.sampled_from([1, 20, 128]),
)
def test_any_pixels_are_answered(seed: int, height: int, width: int, x: int, y: int, spread: int):
    image = np.random.default_rng(seed).integers(0, spread, (height, width, 3)).astype(np.uint8)
    mask = segment.segment_at(image, x, y)
    if mask is not None:
        assert mask.shape == (height, width) and mask.any() and x < width and y < height
        assert properties.properties_of(image, mask).area == mask.sum()
        assert len(track.track_object(np.stack([image, image]), mask).positions) == 2
    assert all(0 <= px < width and 0 <= py < height for px, py in zoom.objects_in(image, (0, 0, width, height)))


@given(st.integers(0, 255), st.integers(0, 255), st.integers(0, 255))
def test_every_colour_has_a_name(r: int, g: int, b: int):
    assert properties.colour_name(np.array([r, g, b])) in properties.PROTOTYPES


# ------------------------------------------------------------------------------------------------ real photographs


def coins_by_threshold(image: np.ndarray) -> list[np.ndarray]:
    """Whole single coins, found in another way: Otsu's threshold, and convex components."""
    grey = image[..., 0]
    filled = ndimage.binary_fill_holes(ndimage.binary_opening(grey > filters.threshold_otsu(grey), iterations=2))
    labels = measure.label(filled)
    return [labels == p.label for p in measure.regionprops(labels) if p.area > 600 and p.solidity > 0.9]


def test_coins_of_a_photograph_are_segmented_and_round():
    image = photo("coins.png")
    coins = coins_by_threshold(image)
    masks = [segment.segment_at(image, int(np.nonzero(c)[1].mean()), int(np.nonzero(c)[0].mean())) for c in coins]
    good = [m for m, c in zip(masks, coins, strict=True) if m is not None and iou(m, c) >= 0.9]
    assert len(coins) >= 20 and len(good) >= 0.8 * len(coins)
    assert all(properties.properties_of(image, m).shape == "circle" for m in good)


def test_the_horse_of_a_silhouette_is_black():
    image = photo("horse.png")
    mask = segment.segment_at(image, 200, 160)
    assert mask is not None and iou(mask, image[..., 0] < 128) >= 0.95
    assert properties.properties_of(image, mask).colour == "black"


def test_the_orange_suit_of_the_astronaut():
    image = photo("astronaut.png")
    mask = segment.segment_at(image, 220, 350)
    assert mask is not None and mask[350, 220] and not mask[100, 200]
    assert properties.properties_of(image, mask).colour in ("orange", "red")


@pytest.mark.parametrize(
    "box, text",
    [
        ((4, 8, 240, 36), "Region-based segmentation"),
        ((0, 66, 260, 86), "background. These markers are pixels"),
        ((15, 168, 250, 188), ">>> markers = np.zeros_like(coins)"),
    ],
)
def test_lines_of_a_photographed_page_are_read(box: tuple[int, int, int, int], text: str):
    read = ocr.read_text(photo("page.png"), box)
    agree = measure_agreement(read.replace(" ", ""), text.replace(" ", ""))
    assert agree >= 0.85, read


def measure_agreement(a: str, b: str) -> float:
    import difflib

    return difflib.SequenceMatcher(None, a, b).ratio()


def test_a_coin_that_moves_over_another_photograph_is_followed():
    coins, behind = photo("coins.png"), photo("coffee.png")
    coin = coins_by_threshold(coins)[1]
    ys, xs = np.nonzero(coin)
    patch, cut = (
        coins[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1],
        coin[ys.min() : ys.max() + 1, xs.min() : xs.max() + 1],
    )
    frames, corners = [], [(60 + 7 * f, 80 + 2 * f) for f in range(6)]
    for x, y in corners:
        frame = behind[:250, :300].copy()
        frame[y : y + cut.shape[0], x : x + cut.shape[1]][cut] = patch[cut]
        frames.append(frame)
    mask = np.zeros(frames[0].shape[:2], bool)
    mask[80 : 80 + cut.shape[0], 60 : 60 + cut.shape[1]] = cut
    found = track.track_object(np.stack(frames), mask)
    moved = np.array(found.positions) - found.positions[0]
    assert np.abs(moved - (np.array(corners) - corners[0])).max() <= 1.0
    assert found.direction == "right"


def test_an_object_that_stands_still_is_still():
    frames = np.repeat(photo("coins.png")[None], 5, axis=0)
    mask = coins_by_threshold(frames[0])[1]
    assert track.track_object(frames, mask).direction == "still"


# ------------------------------------------------------------------------------------------------ nothing but pixels


def test_tools_import_nothing_that_knows_the_scene():
    found = importlib.util.find_spec("grpo_tui.engine.demonstration.visual.operations")
    assert found is not None and found.submodule_search_locations
    files = list(Path(next(iter(found.submodule_search_locations))).glob("*.py"))
    assert len(files) >= 6
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.level:
                own = node.level == 1 or node.module == "configs.errors"  # the root of all errors knows no scene
                assert own, f"{file.name} imports from outside the tools"
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not any("grpo_tui" in n or n.split(".")[0] == "cv2" for n in names), file.name
