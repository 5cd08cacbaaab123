"""The target where nobody names one."""

DEFAULT_TARGET = "gfx942"
