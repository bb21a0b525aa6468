"""All recipes by name."""

from __future__ import annotations

from .field import FIELD
from .recipes import RECIPES
from .reports import REPORTS
from .small_models import SMALL_MODELS
from .trackers import TRACKERS
from .withheld import WITHHELD

CORPUS = {**RECIPES, **{recipe.name: recipe for recipe in (*WITHHELD, *TRACKERS, *FIELD, *REPORTS, *SMALL_MODELS)}}
