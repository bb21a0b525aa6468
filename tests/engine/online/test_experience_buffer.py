"""Nearest experiences, exactly, within a fixed size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_tui.engine.online.serve.experience_buffer import ExperienceBuffer


@given(st.integers(0, 40), st.integers(1, 20), st.integers(1, 6), st.integers(0, 1000))
def test_nearest_equals_a_plain_sort(count: int, capacity: int, k: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    buffer = ExperienceBuffer(capacity)
    vectors = rng.normal(size=(count, 5))
    for i, vector in enumerate(vectors):
        buffer.add(f"e{i}", vector, f"a{i}")
    query = rng.normal(size=5)
    kept = range(max(0, count - capacity), count)  # the oldest go
    cosine = {i: vectors[i] @ query / np.linalg.norm(vectors[i]) / np.linalg.norm(query) for i in kept}
    expected = sorted(cosine, key=lambda i: -cosine[i])[:k]
    found = buffer.neighbours(query, k, -1.0)
    assert [m.id for m in found] == [f"e{i}" for i in expected]
    assert [2 * m.weight for m in found] == pytest.approx([cosine[i] for i in expected], abs=1e-5)
    assert len(buffer) == min(count, capacity)


def test_only_the_alike_vote() -> None:
    buffer = ExperienceBuffer(4)
    buffer.add("near", np.array([1.0, 0.01]), "a")
    buffer.add("far", np.array([0.0, 1.0]), "b")
    voters = buffer.neighbours(np.array([1.0, 0.0]), 2)
    assert [(v.id, v.answer) for v in voters] == [("near", "a")]
    assert voters[0].weight == pytest.approx(0.5, abs=1e-3)


def test_zero_and_nan_are_left_out() -> None:
    buffer = ExperienceBuffer(4)
    buffer.add("zero", np.zeros(3), "a")
    buffer.add("nan", np.array([1.0, np.nan, 0.0]), "b")
    assert len(buffer) == 0
    assert buffer.neighbours(np.ones(3), 2, -1.0) == []


def test_saved_and_loaded(tmp_path: Path) -> None:
    buffer, other = ExperienceBuffer(3), ExperienceBuffer(3)
    for i in range(5):
        buffer.add(f"e{i}", np.eye(5)[i] + 0.1, f"answer {i}")
    buffer.save(tmp_path / "b.npz")
    other.load(tmp_path / "b.npz")
    query = np.arange(5.0)
    assert other.neighbours(query, 3, -1.0) == buffer.neighbours(query, 3, -1.0)
    other.add("new", np.ones(5), "x")
    buffer.add("new", np.ones(5), "x")
    found = [{n.id for n in held.neighbours(query, 3, -1.0)} for held in (other, buffer)]
    assert found == [{"e3", "e4", "new"}] * 2
    np.savez(tmp_path / "bad.npz", vectors=np.zeros((2, 2)), ids=np.array(["a"]), answers=np.array(["b"]), next=0)
    with pytest.raises(ValueError, match="not an experience buffer"):
        other.load(tmp_path / "bad.npz")


@pytest.mark.parametrize("at", [0, 40, -30])
def test_a_damaged_file_is_refused_and_not_voted_with(tmp_path: Path, at: int) -> None:
    buffer = ExperienceBuffer(8)
    for i in range(5):
        buffer.add(f"request-{i}", np.arange(16, dtype=np.float32) + i, "red")
    path = tmp_path / "experiences.npz"
    buffer.save(path)
    data = bytearray(path.read_bytes())
    for i in range(20):
        data[at + i] ^= 0xFF
    path.write_bytes(data)
    again = ExperienceBuffer(8)
    with pytest.raises(ValueError):
        again.load(path)
    assert len(again) == 0
