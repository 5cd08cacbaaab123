"""`python -m convgen` is the `convgen` program."""

from convgen.commands.cli import entry

entry()
