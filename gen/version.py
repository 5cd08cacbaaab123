"""The version of this package, for reports, records and `convgen --version`."""

__version__ = "0.1.0"
