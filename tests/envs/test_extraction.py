"""The part of a text that votes and feedback compare."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from grpo_tui.envs.extraction import AnswerFormError, make_extractor
from grpo_tui.envs.guard import guarded


@pytest.mark.parametrize(
    ("form", "text", "answer"),
    [
        ("boxed", r"so \boxed{1} and \boxed{\frac{1}{2}} it is", "0.5" if find_spec("math_verify") else r"\frac{1}{2}"),
        ("boxed", r"\boxed{\text{red}}, no: \boxed{ Blue }", "blue"),
        ("boxed", r"\boxed{42.0}", "42"),
        ("boxed", r"\boxed{42", None),
        ("last_number", "First 3, then the answer is 1,234.50.", "1234.5"),
        ("last_number", "The larger number is **73**.", "73"),
        ("last_number", "from -7 to -0.0", "0"),
        ("last_number", "it is 1234567890123456789012345678901.50", "1234567890123456789012345678901.5"),
        ("last_number", "none at all", None),
        ("last_number", "x = \u22122.5", "-2.5"),
        ("choice", "I think A is wrong. The answer is (b).", "b"),
        ("choice", "C.", "c"),
        ("choice", "Cats are fine", None),
        ("choice", "**Answer:** B", "b"),
        ("choice", "\n" * 20_000 + "answer" + " " * 20_000, None),
        ("json:result.0.x", 'so {"result": [{"x": "Blue "}]} it is', "blue"),
        ("json:x", "{broken [1, 2]", None),
        (r"larger is (\d+)", "25? The larger is 73, said he", "73"),
        ("yes|no", "Yes, or no", "no"),
    ],
)
def test_what_is_extracted(form: str, text: str, answer: str | None) -> None:
    extract = make_extractor(form)
    assert extract is not None and extract(text) == answer
    assert guarded(extract, text, 20.0).value == answer  # on another thread


def test_a_function_of_the_user(tmp_path: Path) -> None:
    file = tmp_path / "own.py"
    file.write_text("def first(text):\n    return text.split()[0] if text else None\n")
    extract = make_extractor(f"{file}:first")
    assert extract is not None and extract("Red and blue") == "red" and extract("") is None


def test_a_text_on_which_the_users_function_fails_has_no_answer(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "own.py"
    file.write_text("def after(text):\n    return text.split('####')[1]\n")
    extract = make_extractor(f"{file}:after")
    assert extract is not None and [extract(t) for t in ("#### 5", "none", "none either")] == ["5", None, None]
    assert caplog.text.count("after failed (IndexError)") == 1


def test_the_environments_own_and_what_cannot_be_used() -> None:
    assert make_extractor("environment") is None
    with pytest.raises(AnswerFormError, match="is not a regular expression"):
        make_extractor("(")
