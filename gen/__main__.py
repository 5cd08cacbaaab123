"""`python -m convgen` is the `convgen` program."""

from convgen.cli import entry

entry()
