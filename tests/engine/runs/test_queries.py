"""Filters, searches, orders, pages, neighbours, counts and histograms against a plain reading of the same records."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_tui.engine.runs.codec import search_text
from grpo_tui.engine.runs.errors import FilterError
from grpo_tui.engine.runs.read.reader import RunReader
from grpo_tui.engine.runs.search import views
from grpo_tui.engine.runs.search.filters import parse
from grpo_tui.engine.runs.search.query import Query
from grpo_tui.engine.runs.types import TrajectoryRecord
from grpo_tui.engine.runs.write.writer import RunWriter

Known = tuple[int, int, TrajectoryRecord]  # n, step, record
Test = Callable[[Known], bool]


def rules(known: Known) -> set[str]:
    breakdown = known[2].breakdown
    return {p.rule for p in breakdown.penalties} if breakdown else set()


def total(known: Known) -> float:
    breakdown = known[2].breakdown
    assert breakdown is not None and breakdown.total is not None
    return breakdown.total


def words(known: Known) -> str:
    return "\n".join(search_text(known[2])).lower()


# Expression, and the same thing in plain Python.
TERMS: list[tuple[str, Test]] = [
    ("reward<0.2", lambda k: total(k) < 0.2),
    ("reward >= 1", lambda k: total(k) >= 1),
    ("reward != 0", lambda k: total(k) != 0),
    ("step:3..5", lambda k: 3 <= k[1] <= 5),
    ("step>100", lambda k: False),
    ("n=17", lambda k: k[0] == 17),
    ("turns>2", lambda k: len(k[2].trajectory.steps) > 2),
    ("penalties>=2", lambda k: len(k[2].breakdown.penalties if k[2].breakdown else ()) >= 2),
    ("correct", lambda k: k[2].trajectory.correct is True),
    ("wrong", lambda k: k[2].trajectory.correct is False),
    ("correct:unknown", lambda k: k[2].trajectory.correct is None),
    ("penalised", lambda k: bool(rules(k))),
    ("penalty:missing_prerequisite", lambda k: "missing_prerequisite" in rules(k)),
    ("penalty:*out*", lambda k: "out_of_bounds" in rules(k)),
    ("action:get_properties", lambda k: "GET_PROPERTIES" in k[2].trajectory.actions),
    ("action:?", lambda k: "?" in k[2].trajectory.actions),
    ("unparsed", lambda k: "?" in k[2].trajectory.actions),
    ("env:VisualEnv", lambda k: k[2].trajectory.env.endswith("VisualEnv")),
    ("split=eval", lambda k: k[2].split == "eval"),
    ("stop:max_turns", lambda k: k[2].trajectory.stop_reason == "max_turns"),
    ("error", lambda k: any(s.error for s in k[2].trajectory.steps)),
    ("group:g4-2", lambda k: k[2].trajectory.group == "g4-2"),
    ("group:g4-*", lambda k: k[2].trajectory.group.startswith("g4-")),
    ("prompt:p7", lambda k: k[2].trajectory.prompt_id == "p7"),
    ('id:"t2-3"', lambda k: k[2].trajectory.id == "t2-3"),
    ("answer:left", lambda k: k[2].trajectory.answer == "left"),
    ("observation:broke", lambda k: False),
    ("text:blue", lambda k: "blue" in words(k)),
]
SEARCHES: list[tuple[str, Test]] = [
    ("", lambda k: True),
    ("CIRCLE", lambda k: True),
    ("blue right", lambda k: "blue" in words(k) and "right" in words(k)),
    ('"such mask"', lambda k: "such mask" in words(k)),
    ("mask -such", lambda k: "mask" in words(k) and "such" not in words(k)),
    ("observation:mask", lambda k: any("mask" in s.observation for s in k[2].trajectory.steps)),
    ("SEGMENT_OBJECT_AT", lambda k: "segment_object_at" in words(k)),
    ("bou*", lambda k: "bounds" in words(k)),
    ("xyzzy", lambda k: False),
]
SORTS: dict[str, Callable[[Known], float | None]] = {
    "n": lambda k: k[0],
    "step": lambda k: k[1],
    "reward": total,
    "advantage": lambda k: k[2].advantage,
    "turns": lambda k: len(k[2].trajectory.steps),
    "tokens": lambda k: 0 if k[2].tokens is None else len(k[2].tokens),
    "penalties": lambda k: len(k[2].breakdown.penalties if k[2].breakdown else ()),
}


@st.composite
def expressions(draw) -> tuple[str, Test]:
    text, test = draw(st.sampled_from(TERMS))
    for _ in range(draw(st.integers(0, 3))):
        other, check = draw(st.sampled_from(TERMS))
        if draw(st.booleans()):
            other, check = f"not {other}", (lambda c: lambda k: not c(k))(check)
            if "correct" in other or "wrong" in other:
                continue  # `not correct` leaves out the unknown; tested below
        if draw(st.booleans()):
            text, test = f"({text}) and {other}", (lambda a, b: lambda k: a(k) and b(k))(test, check)
        else:
            text, test = f"({text} or {other})", (lambda a, b: lambda k: a(k) or b(k))(test, check)
    return text, test


def ordered(records: list[Known], sort: str, descending: bool) -> list[int]:
    key = SORTS[sort]
    found = sorted(records, key=lambda k: ((key(k) is not None), key(k) or 0.0, k[0]))
    return [k[0] for k in (reversed(found) if descending else found)]


@pytest.fixture(scope="module")
def known(recorded) -> list[Known]:
    return [(n, step, record) for n, (step, record) in enumerate(recorded[1], 1)]


@pytest.fixture(params=["small", "large"])
def size(request, monkeypatch) -> str:
    """Views are lists below a size and walks along an index above it; both must say the same."""
    monkeypatch.setattr(views, "COUNT_SECONDS", 20.0)  # what is asked here is whether answers are right
    if request.param == "large":
        monkeypatch.setattr(views, "SMALL", 3)
        monkeypatch.setattr(views, "AHEAD", 5)
    return request.param


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=pytest.mark.stress)])
def test_pages_neighbours_and_counts_equal_a_plain_reading(recorded, known, size, examples: int):
    reader = RunReader(recorded[0])

    @settings(max_examples=examples, deadline=None)
    @given(expressions(), st.sampled_from(SEARCHES), st.sampled_from(sorted(SORTS)), st.booleans(), st.randoms())
    def check(expression: tuple[str, Test], search: tuple[str, Test], sort: str, descending: bool, rng: random.Random):
        matching = [k for k in known if expression[1](k) and search[1](k)]
        expected = ordered(matching, sort, descending)
        query = Query(expression[0], search[0], sort, descending)
        count = reader.rollouts.count(Query(expression[0], search[0]))
        assert (int(count), count.exact) == (len(expected), True)
        with RunReader(recorded[0]) as fresh:  # before anything was counted
            least = fresh.rollouts.least(query)
        assert least == len(expected) if least.exact else 0 < least <= len(expected)
        for offset in (0, rng.randrange(len(expected) + 1), max(0, len(expected) - 5), len(expected) + 3):
            page = reader.rollouts.page(query, offset=offset, limit=7)
            assert [r.n for r in page] == expected[offset : offset + 7]
        for n in rng.sample(range(1, len(known) + 1), 5):
            everywhere = ordered(known, sort, descending)
            position = everywhere.index(n)
            inside = set(expected)
            after = next((m for m in everywhere[position + 1 :] if m in inside), None)
            before = next((m for m in reversed(everywhere[:position]) if m in inside), None)
            for direction, wanted in ((+1, after), (-1, before)):
                row = reader.rollouts.seek(n, direction, query)
                assert (row.n if row else None) == wanted
            assert reader.rollouts.position(n, query) == (expected.index(n) if n in inside else None)
        bars = reader.rollouts.histogram(Query(expression[0], search[0]), bins=6)
        assert bars.exact and sum(c for _, _, c in bars) == len(expected)
        for low, high, bar in bars:
            inner = [k for k in matching if low + 1e-9 < total(k) < high - 1e-9]
            outer = [k for k in matching if low - 1e-9 <= total(k) <= high + 1e-9]
            assert len(inner) <= bar <= len(outer)

    check()
    reader.close()


def test_not_correct_means_wrong_and_leaves_out_the_unknown(reader: RunReader, known):
    assert reader.rollouts.count(Query("not correct")) == sum(k[2].trajectory.correct is False for k in known)
    assert reader.rollouts.count(Query("not (correct or wrong)")) == 0
    assert reader.rollouts.count(Query("correct:no")) == reader.rollouts.count(Query("wrong"))


def test_two_terms_side_by_side_mean_and(reader: RunReader):
    assert reader.rollouts.count(Query("correct penalised")) == reader.rollouts.count(Query("correct and penalised"))


def test_names_that_the_run_does_not_hold_are_named_with_the_nearest(reader: RunReader):
    assert reader.rollouts.count(Query("penalty:missing_prerequsite")) == 0
    (note,) = reader.rollouts.filter_notes("penalty:missing_prerequsite and correct")
    assert "no penalty 'missing_prerequsite'" in note and "missing_prerequisite" in note
    assert reader.rollouts.filter_notes("penalty:missing_prerequisite") == ()


@pytest.mark.parametrize(
    ("text", "position", "says"),
    [
        ("reward<", 7, "value after reward"),
        ("reward<abc", 7, "needs a number"),
        ("reward:nan", 7, "the flag nan"),
        ("rewrd<1", 0, "did you mean 'reward'"),
        ("reward", 0, "compare reward with a number"),
        ("action", 0, "give a value"),
        ("action<3", 6, "is a name"),
        ("(reward<1", 9, "expected `)`"),
        ("reward<1 )", 9, "expected `and`"),
        ("reward<1 and", 12, "expected a term"),
        ("correct:maybe", 8, "yes or no"),
        ("'x'", 0, "unexpected character"),
        ("reward<1 or or", 12, "unknown name 'or'"),
    ],
)
def test_a_wrong_filter_says_where_and_what_would_be_right(text: str, position: int, says: str):
    with pytest.raises(FilterError) as caught:
        parse(text)
    assert caught.value.position == position
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (" or ".join(f"id:t{i}" for i in range(2000)), "800 terms"),
        ("not " * 2000 + "correct", "12 nested parentheses"),
        ("(" * 2000 + "correct" + ")" * 2000, "12 nested parentheses"),
        ("id:" + "*a" * 40_000, "10,000 characters"),
    ],
    ids=["terms", "not", "parentheses", "value"],
)
def test_a_filter_that_is_too_long_is_refused_and_is_no_damage(reader: RunReader, text: str, says: str):
    with pytest.raises(FilterError, match=says):
        reader.rollouts.count(Query(text))
    assert reader.rollouts.count(Query(" or ".join(f"id:t1-{i}" for i in range(800)))) == 60
    assert reader.rollouts.count(Query("(not (correct or " * 4 + "penalised" + "))" * 4)) > 0
    assert reader.problems == []


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet="reward<>=!:()'\" andortcp*12.&|\x00é", max_size=30))
def test_no_text_breaks_the_filter_or_the_search(reader: RunReader, text: str):
    """It leaves some of the rows, as many as it counts, or says in one line what is wrong, and where."""
    for query in (Query(filter=text), Query(search=text)):
        try:
            count, rows = reader.rollouts.count(query), reader.rollouts.page(query, limit=1000)
            assert count == len(rows) == len({row.n for row in rows}) <= 600
            assert query.everything is False or count == 600
        except FilterError as error:
            assert text.strip() and 0 <= error.position <= len(text) and "\n" not in str(error)


def test_a_search_without_a_word_says_so(reader: RunReader):
    with pytest.raises(FilterError, match="at least one word"):
        reader.rollouts.count(Query(search="-mask ..."))


def test_sorting_by_what_is_no_number_is_refused(reader: RunReader):
    with pytest.raises(FilterError, match="use one of n, step"):
        reader.rollouts.page(Query(sort="prompt"))


def test_more_names_than_a_mask_has_bits(run_dir: Path, writer: RunWriter, make_record):
    from grpo_tui.envs.trajectory import Step

    many = [
        make_record(1, i, steps=(Step(0, "", action=f"TOOL_{i}"), Step(1, "", action="TOOL_0"))) for i in range(200)
    ]
    writer.trajectories(1, many)
    assert writer.flush(20)
    with RunReader(run_dir) as reader:
        for i in (1, 61, 62, 63, 150, 199):
            assert [r.n for r in reader.rollouts.page(Query(f"action:TOOL_{i}"))] == [i + 1]
            assert reader.rollouts.count(Query(f"not action:TOOL_{i}")) == 199
        assert reader.rollouts.count(Query("action:TOOL_0")) == 200
        assert reader.rollouts.count(Query("action:TOOL_19*")) == 11
        assert len(reader.rollouts.names("action")) == 200


def test_views_take_in_what_is_recorded_meanwhile(run_dir: Path, writer: RunWriter, make_record, size):
    with RunReader(run_dir) as reader:
        given: list[Known] = []
        for step in range(1, 6):
            records = [make_record(step, i) for i in range(20)]
            writer.trajectories(step, records)
            assert writer.flush(10)
            given.extend((len(given) + 1, step, r) for r in records)
            for sort, descending in (("n", False), ("n", True), ("reward", True), ("advantage", False)):
                matching = [k for k in given if total(k) < 0.5]
                expected = ordered(matching, sort, descending)
                query = Query("reward<0.5", sort=sort, descending=descending)
                assert [r.n for r in reader.rollouts.page(query, limit=500)] == expected
                assert [r.n for r in reader.rollouts.page(query, limit=5, offset=8)] == expected[8:13]
                assert reader.rollouts.count(Query("reward<0.5")) == len(expected)


def test_a_count_that_takes_too_long_is_a_lower_bound(recorded, monkeypatch):
    monkeypatch.setattr(views, "SMALL", 3)
    monkeypatch.setattr(views, "COUNT_SECONDS", -1.0)
    monkeypatch.setattr("grpo_tui.engine.runs.read.record._OPCODES", 10)
    with RunReader(recorded[0]) as reader:
        count = reader.rollouts.count(Query("reward<0.5"))
        assert not count.exact and str(count) == "≥ 4"


def test_groups_and_prompts(reader: RunReader, known):
    group = [k for k in known if k[2].trajectory.group == "g3-1"]
    assert [r.n for r in reader.rollouts.group("g3-1")] == [k[0] for k in group]
    prompt = [k[0] for k in known if k[2].trajectory.prompt_id == "p2"]
    assert [r.n for r in reader.rollouts.prompt("p2")] == prompt
    assert [r.n for r in reader.rollouts.prompt("p2", limit=3)] == prompt[-3:]
    assert reader.rollouts.group("none such") == []


def test_what_is_not_there_is_named(reader: RunReader):
    with pytest.raises(LookupError, match="it has numbers 1 to 600"):
        reader.bodies.trajectory(601)
    with pytest.raises(LookupError, match="no trajectory 'nope'"):
        reader.bodies.tokens("nope")
    assert reader.bodies.trajectory("600").trajectory.id == reader.bodies.trajectory(600).trajectory.id
