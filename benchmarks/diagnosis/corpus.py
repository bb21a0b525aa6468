"""All recipes by name."""

from __future__ import annotations

from .field import FIELD
from .issues import ISSUES
from .practice import PRACTICE
from .recipes import RECIPES
from .reports import REPORTS
from .small_models import SMALL_MODELS
from .threads import THREADS
from .trackers import TRACKERS
from .withheld import WITHHELD

FURTHER = (*WITHHELD, *TRACKERS, *FIELD, *REPORTS, *THREADS, *ISSUES, *PRACTICE, *SMALL_MODELS)
CORPUS = {**RECIPES, **{recipe.name: recipe for recipe in FURTHER}}
