"""Penalties as data: general rules that read an environment's tool declarations, and users' own rules.

No torch here, so viewers can explain penalties. `base.py` defines a rule. `built_in.py` has those of the package.
"""

from __future__ import annotations

from .base import Episode as Episode
from .base import PenaltyRule as PenaltyRule
from .base import call_text as call_text
from .base import listed as listed
from .base import shown as shown
from .built_in import BUILT_IN as BUILT_IN
