"""Random trainings: what a writer is given, and what the importer must give back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from hypothesis import strategies as st


@dataclass(frozen=True)
class Called:
    """One call of a tool, and its result."""

    id: str
    name: str
    arguments: Mapping[str, object]
    result: str
    failed: bool = False


@dataclass(frozen=True)
class Turn:
    """One turn of the policy; `heard` is the user's next message."""

    text: str
    calls: tuple[Called, ...] = ()
    heard: str = ""
    thought: str = ""
    stop: str = "stop"


@dataclass(frozen=True)
class Episode:
    """One rollout."""

    id: str
    step: int
    prompt_id: str
    group: str
    index: int
    question: str
    turns: tuple[Turn, ...]
    system: str = ""
    split: str = "train"
    reward: float | None = None
    components: Mapping[str, float | None] = field(default_factory=dict)
    advantage: float | None = None
    answer: str = "42"
    error: str = ""
    stop: str = "stop"

    @property
    def judged(self) -> str:
        """The words of a judge, for formats that keep it beside the rollout."""
        return f"I judge {self.id}."


LETTERS = "abc XYZ 019 ,.:;!?'\"\\{}()äß字🙂"
TEXT = st.text(LETTERS, min_size=1, max_size=24).map(str.strip).filter(bool)
NUMBER = st.one_of(st.none(), st.sampled_from([math.nan, math.inf, -math.inf]), st.integers(-8, 8).map(lambda n: n / 4))
FINITE = st.integers(-8, 8).map(lambda n: n / 4)
UNKNOWN_OR_FINITE = st.one_of(st.none(), FINITE)
VALUE = st.one_of(st.integers(-9, 9), TEXT, st.booleans(), st.none(), st.lists(st.integers(0, 3), max_size=2))
ARGUMENTS = st.dictionaries(st.sampled_from(["x", "y", "of"]), VALUE, max_size=2)


@st.composite
def turns(draw: st.DrawFn, prefix: str, limits: Limits) -> tuple[Turn, ...]:
    """One to three turns: all but the last call tools or hear a message; the last may call, too."""
    made = []
    count = draw(st.integers(1, limits.turns))
    for i in range(count):
        last = i == count - 1
        calls: tuple[Called, ...] = ()
        if limits.calls and draw(st.booleans()):
            calls = tuple(
                Called(f"call_{prefix}_{i}_{j}", draw(st.sampled_from(["look", "zoom"])), draw(ARGUMENTS), draw(TEXT),
                       limits.tool_errors and draw(st.booleans()))
                for j in range(draw(st.integers(1, limits.parallel)))
            )  # fmt: skip
        heard = "" if last or calls else draw(TEXT)
        text = "" if (calls or limits.empty) and draw(st.booleans()) else draw(TEXT)
        made.append(Turn(text, calls, heard, draw(TEXT) if limits.thoughts and draw(st.booleans()) else ""))
    stop = draw(st.sampled_from(["stop", "length"]))
    return (*made[:-1], Turn(made[-1].text, made[-1].calls, "", made[-1].thought, stop))


@dataclass(frozen=True)
class Limits:
    """Scenarios that a format can be asked to hold at all."""

    turns: int = 3
    calls: bool = True
    parallel: int = 3
    tool_errors: bool = True
    thoughts: bool = True
    empty: bool = True
    system: bool = True
    evaluations: bool = True
    reward: st.SearchStrategy[float | None] = NUMBER
    advantage: st.SearchStrategy[float | None] = UNKNOWN_OR_FINITE
    component: st.SearchStrategy[float | None] = UNKNOWN_OR_FINITE


def scenarios(limits: Limits) -> st.SearchStrategy[list[Episode]]:
    """Trainings of one to two steps with one to two groups of one to three rollouts, and evaluations."""

    @st.composite
    def make(draw: st.DrawFn) -> list[Episode]:
        found: list[Episode] = []
        system = draw(TEXT) if limits.system and draw(st.booleans()) else ""
        names = draw(st.sets(st.sampled_from(["right", "format"]), max_size=2))
        questions = draw(st.lists(TEXT, min_size=2, max_size=2, unique=True))
        splits = ["train", "eval"] if limits.evaluations and draw(st.booleans()) else ["train"]
        for step in range(1, draw(st.integers(1, 2)) + 1):
            for split in splits:
                for p, question in enumerate(questions[: draw(st.integers(1, 2))]):
                    for index in range(draw(st.integers(1, 3))):
                        id_ = f"{split}-{step}-{p}-{index}"
                        said = draw(turns(id_, limits))
                        failed = draw(st.booleans()) and draw(st.booleans())
                        found.append(
                            Episode(
                                id=id_,
                                step=step,
                                prompt_id=f"p{p}",
                                group=f"{split}-{step}-{p}",
                                index=index,
                                question=question,
                                turns=said,
                                system=system,
                                split=split,
                                reward=draw(limits.reward),
                                components={n: draw(limits.component) for n in sorted(names)},
                                advantage=draw(limits.advantage),
                                error="it failed" if failed else "",
                                stop=said[-1].stop,
                            )
                        )
        return found

    return make()
