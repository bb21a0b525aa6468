import json
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from benchmarks.environment import CountedCache, true_mask
from grpo_tui.configs.plain_data import from_plain
from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.engine.demonstration.visual.clips import clip_of_task
from grpo_tui.engine.demonstration.visual.env import ResultCache
from grpo_tui.engine.demonstration.visual.operations.properties import colour_name
from grpo_tui.engine.demonstration.visual.questions import QUESTIONS, make_question
from grpo_tui.engine.demonstration.visual.render import photo_path, render
from grpo_tui.engine.demonstration.visual.routes import ROUTES
from grpo_tui.engine.demonstration.visual.scenes import (
    COLOURS,
    EVAL_PHOTOS,
    EVAL_WORDS,
    TRAIN_PHOTOS,
    TRAIN_WORDS,
    Scene,
    SceneOptions,
)
from grpo_tui.envs.calls import format_call
from grpo_tui.envs.explain import with_system
from grpo_tui.envs.trajectory import Trajectory

from .scripts import ByteAgent, demonstrating

ALL = tuple(QUESTIONS)


def visual(**options: Any) -> VisualEnv:
    return VisualEnv(**options)


def walk(env: VisualEnv, tasks: list[dict[str, Any]], route: str) -> list[Trajectory]:
    return env.run_trial(tasks, demonstrating(env, tasks, 1, route), 1)["trajectories"]


def task_of(kind: str, env: VisualEnv, split: str = "train", index: int = 0) -> dict[str, Any]:
    return make_question("eval" if split == "eval" else "train", 4, index, (kind,), env.options["train"]).to_task()


# ------------------------------------------------------------------------------------------------ tasks and scenes


def test_tasks_are_repeatable_plain_json_and_grow_at_the_end():
    env = visual(questions=ALL)
    tasks = env.make_tasks("train", 40, seed=3)
    assert json.loads(json.dumps(tasks)) == tasks
    assert visual(questions=ALL).make_tasks("train", 25, seed=3) == tasks[:25]
    assert env.make_tasks("train", 25, seed=4) != tasks[:25]
    for task in tasks:
        scene = from_plain(Scene, task["scene"], strict=True)
        again = from_plain(Scene, json.loads(json.dumps(scene.to_json())), strict=True)
        assert np.array_equal(render(scene), render(again))


def test_no_prompt_word_or_photograph_is_in_both_splits():
    env = visual(questions=ALL)
    train, held_out = env.make_tasks("train", 150, seed=0), env.make_tasks("eval", 150, seed=0)

    def prompts(tasks: list[dict[str, Any]]) -> set[str]:
        return {str(env.reset(t)[1]) for t in tasks}

    assert not prompts(train) & prompts(held_out)
    assert not {t["scene"]["background"]["photo"] for t in train} & {
        t["scene"]["background"]["photo"] for t in held_out
    } - {""}
    assert not set(TRAIN_WORDS) & set(EVAL_WORDS) and not set(TRAIN_PHOTOS) & set(EVAL_PHOTOS)


def test_answers_and_kinds_are_spread():
    tasks = visual().make_tasks("train", 400, seed=1)
    kinds = Counter(t["question"] for t in tasks)
    assert len(kinds) == 6 and min(kinds.values()) > 400 / 6 / 2
    for kind, choices in (("colour", 8), ("shape", 6), ("motion", 5), ("same_colour", 2)):
        answers = Counter(t["answer"] for t in tasks if t["question"] == kind)
        assert len(answers) == choices
        assert max(answers.values()) / kinds[kind] < 1 / choices + 0.22


def test_coordinates_of_a_question_are_inside_and_on_their_object():
    for index in range(60):
        question = make_question("train", 9, index, ("colour", "bigger", "motion"), SceneOptions())
        for number, (x, y) in enumerate(question.points):
            assert true_mask(question.scene, number)[y, x]
        assert max(question.scene.width, question.scene.height) < 128


def test_shifted_scenes_hold_what_was_asked_for():
    env = visual(colours=["red", "blue"], shapes=["star"], radii=[14, 18], photo_share=0.0, questions=["colour"])
    for task in env.make_tasks("train", 20, seed=0):
        assert task["scene"]["background"]["kind"] == "plain"
        for thing in task["scene"]["objects"]:
            assert thing["colour"] in ("red", "blue") and thing["shape"] == "star" and 14 <= thing["radius"] <= 18


@pytest.mark.parametrize(
    "options, message",
    [
        ({"questions": ["colour", "taste"]}, "questions must be some of colour, shape"),
        ({"questions": []}, "questions must be"),
        ({"colours": ["mauve"]}, "colours must be some of red"),
        ({"shapes": []}, "shapes must be"),
        ({"radii": [3, 9]}, "radii must be two numbers between 6 and 22"),
        ({"radii": [9]}, "radii must be two numbers"),
        ({"photo_share": 2}, "photo_share must be between 0 and 1"),
        ({"noise": -1}, "noise must be between"),
        ({"prompt_style": "long"}, "prompt_style must be terse, full or native"),
        ({"max_side": 2}, "max_side must be at least 16"),
        ({"images": "no/such/place"}, "no/such/place cannot be read"),
        ({"colour": 1}, "unknown colour"),
    ],
)
def test_wrong_options_are_refused_with_what_would_be_right(options: dict[str, Any], message: str):
    with pytest.raises((ValueError, TypeError), match=message):
        visual(**options)


@pytest.mark.parametrize(
    "task, message",
    [
        ({"question": "colour"}, "needs a scene, an image"),
        ({"scene": {"width": 3}}, "scene is invalid"),
        ({"scene": 7}, "scene is invalid"),
        ({"image": "nowhere.png", "question": "?"}, "there is no image nowhere.png"),
    ],
)
def test_a_malformed_task_costs_its_rollout_and_says_why(task: dict[str, Any], message: str):
    trajectory = visual().run_trial([task], ByteAgent(lambda *_: ""), 1)["trajectories"][0]
    assert trajectory.stop_reason == "error" and message in trajectory.error


# ------------------------------------------------------------------------------------------------ routes


def test_the_right_route_reaches_the_answer_with_the_tools_own_answers():
    env = visual(questions=ALL)
    tasks = env.make_tasks("eval", 70, seed=2)
    done = walk(env, tasks, "right")
    assert np.mean([bool(t.correct) for t in done]) >= 0.97
    assert all(t.answer == t.expected for t in done if t.correct)
    assert all(s.error is None for t in done for s in t.steps)
    assert max(len(t.steps) for t in done) == 5


@pytest.mark.parametrize("route", sorted({r for routes in ROUTES.values() for r in routes} - {"right", "repeat"}))
def test_wrong_routes_mostly_fail(route: str):
    env = visual(questions=ALL)
    tasks = [t for t in env.make_tasks("train", 90, seed=5) if route in env.routes(t)][:24]
    done = walk(env, tasks, route)
    limit = 0.75 if route == "one_only" else 0.35  # one of two objects is right half the time
    assert len(tasks) >= 10 and np.mean([bool(t.correct) for t in done]) <= limit
    assert {t.stop_reason for t in done} == ({"max_turns"} if route == "no_answer" else {"answer"})


def test_misuse_is_answered_with_an_error_and_the_facts_that_explain_it():
    env = visual()
    still, film = task_of("colour", env), task_of("motion", env)
    wrong = {
        "skip_segment": "error: no mask 1",
        "track_still": "error: TRACK_OBJECT needs video",
        "out_of_bounds": "error: ",
        "read_shape": "no text",
    }
    for route, observation in wrong.items():
        said = [s.observation for s in walk(env, [still], route)[0].steps]
        assert any(o.startswith(observation) for o in said), (route, said)
    step = walk(env, [still], "out_of_bounds")[0].steps[0]
    assert step.context.modality == "image" and step.error
    assert step.context.facts == {"width": still["scene"]["width"], "height": still["scene"]["height"], "frames": 1}
    right = walk(env, [film], "right")[0]
    assert right.modality == "video" and right.steps[1].context.facts["frames"] == film["scene"]["frames"]
    assert right.steps[1].context.resources == {"mask": ("1",)}


def test_the_same_object_keeps_its_mask():
    env = visual()
    task = task_of("bigger", env)
    (ax, ay), (bx, by) = task["points"]
    texts = [format_call("SEGMENT_OBJECT_AT", {"x": x, "y": y}) for x, y in ((ax, ay), (bx, by), (ax, ay))]
    texts.append(format_call("ANSWER", {"text": f" {task['answer'].upper()}. "}))
    done = env.run_trial([task], ByteAgent(lambda row, turn, _: texts[turn]), 1)["trajectories"][0]
    assert [s.observation for s in done.steps] == ["mask 1", "mask 2", "mask 1", "correct"]
    assert done.steps[3].context.resources == {"mask": ("1", "2")}
    assert done.env_reward == 1.0


def test_an_answer_to_a_question_without_a_known_answer_is_neither_right_nor_wrong():
    env = visual()
    task = {**task_of("bigger", env), "answer": None}
    done = env.run_trial([task], ByteAgent(lambda *_: format_call("ANSWER", {"text": "red"})), 1)["trajectories"][0]
    assert (done.answer, done.correct, done.env_reward) == ("red", None, 0.0)


def test_tools_answer_from_the_pixels_whatever_the_scene_claims():
    env = visual()
    for kind in ("colour", "shape", "motion", "text", "bigger"):
        task = task_of(kind, env)
        before = [s.observation for s in walk(env, [task], "right")[0].steps[:-1]]
        lying = json.loads(json.dumps(task))
        for thing in lying["scene"]["objects"]:
            thing["colour"] = "red"  # the pixels come from `rgb`
        lying["answer"] = "nothing"
        done = walk(visual(), [lying], "right")[0]
        assert [s.observation for s in done.steps[:-1]] == before
        assert done.correct is False


def test_full_prompts_explain_every_tool():
    env = visual(prompt_style="full")
    task = task_of("motion", env)
    system, user = with_system(env.explain(), env.reset(task)[1])
    assert all(tool.name in system.get("content", "") for tool in env.tools)
    assert "first frame" in user.get("content", "") and str(task["points"][0][0]) in user.get("content", "")
    done = walk(env, [task], "right")[0]
    assert done.correct and len(done.steps[1].observation.split(" to ")) == task["scene"]["frames"]


def test_routes_are_only_for_drawn_scenes():
    env = visual()
    assert env.routes({"image": "a.png", "question": "colour"}) == ()
    with pytest.raises(ValueError, match="no route 'smaller' for 'colour', only right, guess"):
        env.demonstrate(task_of("colour", env), "smaller")


# ------------------------------------------------------------------------------------------------ cache


def test_each_answer_is_worked_out_once_for_all_rollouts():
    env = visual(prefetch=False)
    cache = env.cache = CountedCache()
    tasks = env.make_tasks("train", 12, seed=0)
    env.run_trial(tasks, demonstrating(env, tasks, 6), 6)
    calls = {
        name: sum(len({(t["scene"]["seed"], str(a)) for a in _asked(t, name)}) for t in tasks)
        for name in ("SEGMENT_OBJECT_AT", "READ_TEXT")
    }
    assert cache.misses["SEGMENT_OBJECT_AT"] == calls["SEGMENT_OBJECT_AT"]
    assert cache.misses["READ_TEXT"] == calls["READ_TEXT"]
    assert cache.misses["pixels"] == len(tasks)
    assert cache.asked["SEGMENT_OBJECT_AT"] == 6 * calls["SEGMENT_OBJECT_AT"]


def _asked(task: dict[str, Any], name: str) -> list[Any]:
    return task.get("points", []) if name == "SEGMENT_OBJECT_AT" else [task["box"]] if "box" in task else []


def test_the_cache_forgets_the_least_used_and_stays_within_its_bytes():
    cache = CountedCache(10_000)
    for n in range(10):
        cache.get("a", "op", n, lambda: np.zeros(1000, np.uint8))
        cache.get("a", "op", 0, lambda: np.zeros(1000, np.uint8))
    assert cache.misses["op"] == 10 and cache.asked["op"] == 20
    cache.get("a", "op", 1, lambda: np.zeros(1000, np.uint8))
    assert cache.misses["op"] == 11  # 1 was the least used
    big = cache.get("b", "op", 0, lambda: np.zeros(50_000, np.uint8))
    assert big.nbytes == 50_000  # too big to keep is still answered


def test_two_threads_that_ask_at_once_work_once():
    cache, began, go_on = ResultCache(10_000), threading.Event(), threading.Event()
    worked: list[int] = []

    def compute() -> str:
        worked.append(1)
        began.set()
        go_on.wait(10)
        return "x"

    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(cache.get("a", "op", 1, compute))) for _ in range(3)]
    threads[0].start()
    began.wait(10)
    for thread in threads[1:]:
        thread.start()
    go_on.set()
    for thread in threads:
        thread.join(10)
    assert answers == ["x"] * 3 and worked == [1]


def test_a_failure_is_not_kept():
    cache = ResultCache(10_000)
    with pytest.raises(ZeroDivisionError):
        cache.get("a", "op", 1, lambda: 1 / 0)
    assert cache.get("a", "op", 1, lambda: 2) == 2


# ------------------------------------------------------------------------------------------------ pictures


class Store:
    def __init__(self) -> None:
        self.saved: dict[str, np.ndarray] = {}

    def save_image(self, array: np.ndarray, name: str) -> str:
        if "mask" in name and len(self.saved) > 50:
            raise OSError("disk full")
        assert name not in self.saved, "saved twice"
        self.saved[name] = np.asarray(array)
        return f"images/{name}"


def test_pictures_and_masks_are_saved_once_and_pointed_to():
    store = Store()
    env = visual(image_store=store, image_tasks=2)
    tasks = [task_of("motion", env), task_of("inside", env), task_of("colour", env)]
    done = env.run_trial(tasks, demonstrating(env, tasks, 3), 3)["trajectories"]
    film, close_up, plain = done[0], done[3], done[6]
    assert len(film.images) == 4 and all(p.endswith(".jpg") for p in film.images)
    segmenting = film.steps[0].overlay
    assert segmenting is not None and segmenting.image == film.images[0] and segmenting.point is not None
    mask = store.saved[str(segmenting.mask_path).removeprefix("images/")]
    assert mask.dtype == np.uint8 and set(np.unique(mask)) == {0, 255}
    assert mask.shape == (tasks[0]["scene"]["height"], tasks[0]["scene"]["width"])
    following = film.steps[1].overlay
    assert following is not None and len(following.path) == tasks[0]["scene"]["frames"]
    assert close_up.steps[0].images and close_up.steps[0].overlay and close_up.steps[0].overlay.box
    assert plain.images == () and plain.steps[0].overlay is not None  # beyond image_tasks: no pictures, facts stay
    assert plain.steps[0].overlay.image is None
    assert done[0].images == done[1].images


def test_a_store_that_fails_costs_the_pictures_only():
    class Full:
        def save_image(self, array: np.ndarray, name: str) -> str:
            raise OSError("no space left on device")

    env = visual(image_store=Full())
    task = task_of("colour", env)
    done = walk(env, [task], "right")[0]
    assert done.correct and done.images == ()


# ------------------------------------------------------------------------------------------------ own pictures


def own_folder(folder: Path) -> Path:
    for name in ("coins.png", "page.png", "horse.png"):
        (folder / name).write_bytes(photo_path(name).read_bytes())
    frames = [Image.fromarray(f) for f in render(make_question("train", 0, 0, ("motion",), SceneOptions()).scene)]
    frames[0].save(folder / "film.gif", save_all=True, append_images=frames[1:], duration=100)
    rows = [
        {
            "image": "horse.png",
            "question": "What colour is the animal at 200 160?",
            "answer": "black",
            "split": "train",
        },
        {
            "file_name": "page.png",
            "question": "Read 4 8 240 36.",
            "answer": ["Region-based segmentation"],
            "split": "eval",
        },
        {"image": "film.gif", "question": "Does it move?", "answer": "yes"},
    ]
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    return folder


def test_own_pictures_are_asked_about(tmp_path: Path):
    env = visual(images=str(own_folder(tmp_path)))
    tasks = env.make_tasks("train", 10, seed=0) + env.make_tasks("eval", 10, seed=0)
    assert len(tasks) == 3
    horse = next(t for t in tasks if "horse" in t["image"])
    texts = [
        format_call("SEGMENT_OBJECT_AT", {"x": 200, "y": 160}),
        format_call("GET_PROPERTIES", {"mask": 1}),
        format_call("ANSWER", {"text": "Black"}),
    ]
    done = env.run_trial([horse], ByteAgent(lambda row, turn, _: texts[turn]), 1)["trajectories"][0]
    assert done.correct and done.prompt == "image 400 328. What colour is the animal at 200 160?"
    assert done.steps[1].observation.startswith("black ")
    film = env.reset(next(t for t in tasks if "film" in t["image"]))[0]
    assert env.context(film).modality == "video"
    assert visual(images=str(tmp_path / "questions.jsonl")).make_tasks("train", 1, 0)


def test_own_pictures_are_scaled_down_and_named_by_content(tmp_path: Path):
    file = tmp_path / "a.png"
    Image.new("RGB", (900, 300), (250, 0, 0)).save(file)
    first = clip_of_task({"image": str(file)}, 300)
    assert (first.width, first.height, first.frames) == (300, 100, 1)
    (tmp_path / "b.png").write_bytes(file.read_bytes())
    assert clip_of_task({"image": str(tmp_path / "b.png")}, 300).key == first.key
    assert clip_of_task({"image": str(file)}, 200).key != first.key
    assert clip_of_task({"frames": [str(file)] * 3}, 300).load().shape == (3, 100, 300, 3)


def test_own_pictures_show_transparency_on_white_and_all_of_their_bits(tmp_path: Path):
    Image.new("RGBA", (20, 20), (0, 0, 0, 0)).save(tmp_path / "clear.png")
    Image.fromarray(np.full((20, 20), 2**14, np.uint16)).save(tmp_path / "deep.png")
    assert (clip_of_task({"image": str(tmp_path / "clear.png")}, 64).load() == 255).all()
    assert np.ptp(clip_of_task({"image": str(tmp_path / "deep.png")}, 64).load()) == 0


def test_rows_may_hold_line_separators_and_their_file_a_byte_order_mark(tmp_path: Path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    row = {"image": "a.png", "question": "one\u2028two\x85?", "answer": "a", "split": "train"}
    (tmp_path / "questions.jsonl").write_text("\ufeff" + json.dumps(row, ensure_ascii=False) + "\r\n", newline="")
    assert visual(images=str(tmp_path)).make_tasks("train", 1, 0)[0]["question"] == row["question"]


@pytest.mark.parametrize("box", [[127.6, 0, 128, 9], [127, 100.6, 128, 100.9], [0, 0, 0.4, 0.4]])
@pytest.mark.parametrize("tool", ["READ_TEXT", "ZOOM_IN"])
def test_a_box_between_two_edges_of_pixels_is_the_pixel_that_it_is_in(tool: str, box: list[float], tmp_path: Path):
    Image.new("RGB", (128, 128)).save(tmp_path / "a.png")
    env = visual(max_turns=1, image_store=Kept(), questions=("text",))
    task = {"image": str(tmp_path / "a.png"), "question": "?", "answer": "x"}
    (done,) = env.run_trial([task], ByteAgent(lambda *_: format_call(tool, {"box": box})), 1)["trajectories"]
    assert done.stop_reason == "max_turns" and done.steps[0].error is None
    assert len(done.steps[0].images) == (tool == "ZOOM_IN")


class Kept:
    """A store that keeps nothing."""

    def save_image(self, array: np.ndarray, name: str, /) -> str:
        return name


@pytest.mark.parametrize(
    "line, message",
    [
        ("{", r"questions.jsonl:1: not JSON"),
        ("[]", r":1: must be an object"),
        ('{"question": "?", "answer": "a"}', '"image" must be the path'),
        ('{"image": "no.png", "question": "?", "answer": "a"}', "there is no file"),
        ('{"image": "a.png", "answer": "a"}', '"question" must be text'),
        ('{"image": "a.png", "question": "?"}', '"answer" must be text'),
        ('{"image": "a.png", "question": "?", "answer": "a", "split": "x"}', '"split" must be'),
        ("", "has no rows"),
    ],
)
def test_a_wrong_row_is_named_with_its_line(line: str, message: str, tmp_path: Path):
    Image.new("RGB", (20, 20)).save(tmp_path / "a.png")
    (tmp_path / "questions.jsonl").write_text(line + "\n")
    with pytest.raises(ValueError, match=message):
        visual(images=str(tmp_path))
    with pytest.raises(ValueError, match=r"has no questions\.jsonl"):
        (tmp_path / "empty").mkdir()
        visual(images=str(tmp_path / "empty"))


def test_a_file_that_is_no_picture_costs_its_rollout(tmp_path: Path):
    (tmp_path / "a.png").write_text("not a picture")
    task = {"image": str(tmp_path / "a.png"), "question": "?", "answer": "x"}
    done = visual().run_trial([task], ByteAgent(lambda *_: ""), 1)["trajectories"][0]
    assert done.stop_reason == "error" and "a.png cannot be read as an image" in done.error


# ------------------------------------------------------------------------------------------------ a bare machine


def test_everything_works_without_opencv_and_imports_little():
    code = """
import sys
import grpo_tui.envs, grpo_tui.envs.trajectory, grpo_tui.envs.tools, grpo_tui.envs.agent
heavy = {"torch", "transformers", "numpy", "skimage", "PIL"} & set(sys.modules)
assert not heavy, heavy
class NoOpenCV:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "cv2":
            raise ImportError("libGL.so.1: cannot open shared object file")
sys.meta_path.insert(0, NoOpenCV())
from grpo_tui.engine.demonstration.visual import VisualEnv
from grpo_tui.engine.demonstration.visual.clips import clip_of_task
env = VisualEnv()
task = next(t for t in env.make_tasks("train", 40, 0) if t["question"] == "text")
assert env._text(clip_of_task(task, 512), tuple(task["box"])) == task["answer"]
assert "torch" not in sys.modules
print("fine")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert done.stdout.strip() == "fine", done.stderr


def test_colours_that_are_drawn_are_colours_that_are_named():
    for name, rgb in COLOURS.items():
        assert colour_name(np.array(rgb)) == name
