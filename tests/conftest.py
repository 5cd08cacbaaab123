"""What all tests share: helpers importable as `tests.*`, and no deadlines on a busy machine."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.append(str(Path(__file__).parents[1]))  # pytest's importlib mode adds no path

settings.register_profile("convgen", deadline=None)
settings.load_profile("convgen")
