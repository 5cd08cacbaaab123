"""Lets tests of this folder share helpers as `tests.gen.*`: pytest's importlib mode adds no path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2]))
