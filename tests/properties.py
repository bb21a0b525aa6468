"""Properties of drawn cases: some of them in each run, many in the long form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings


def drawn(few: int, many: int, *cases: Any, **named: Any) -> Callable[[Callable[..., None]], Callable[[int], None]]:
    """A test of this property, as `given` makes it: with `few` examples, and with `many` where `stress` is chosen."""

    def decorate(check: Callable[..., None]) -> Callable[[int], None]:
        @pytest.mark.parametrize("examples", [few, pytest.param(many, marks=pytest.mark.stress)])
        def test(examples: int) -> None:
            settings(max_examples=examples, deadline=None)(given(*cases, **named)(check))()

        test.__name__, test.__doc__ = check.__name__, check.__doc__
        return test

    return decorate
