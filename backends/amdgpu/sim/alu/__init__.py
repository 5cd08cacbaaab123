"""Arithmetic: operand access by type, and the tables of scalar and vector instructions."""
