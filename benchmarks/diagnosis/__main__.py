"""`python -m benchmarks.diagnosis train | evaluate | suggestions | cost`; see the package."""

from __future__ import annotations

import argparse
import sys

from . import __doc__ as about
from .corpus import CORPUS


def main() -> None:
    """Run missing trainings, evaluate finished ones, try suggestions, or measure the cost."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "evaluate", "suggestions", "cost"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", help=f"of {', '.join(CORPUS)}")
    given = parser.parse_args()
    names = given.only.split(",") if given.only else list(CORPUS)
    if unknown := [name for name in names if name not in CORPUS]:
        sys.exit(f"there is no recipe {', '.join(unknown)}: choose from {', '.join(CORPUS)}")
    if given.what == "train":
        from .training import train

        train(names, given.seeds)
    elif given.what == "cost":
        from .cost import cost

        cost(24)
    elif given.what == "suggestions":
        from .suggestions import suggestions

        suggestions(names, given.seeds)
    else:
        from .evaluation import evaluate

        evaluate(names, given.seeds)


if __name__ == "__main__":
    main()
