"""Time of launches by an event model of one unit: what all families share.

The simulator of a family executes some workgroups (`launch`); their instructions (`waves.Op`) run on the family's
model of a unit (`waves.UnitModel`). Long loops are shortened (`shortened_loops`), unequal workgroups sampled
(`unequal`), cache misses counted from addresses (`cache_traffic`), and results put into records (`unit_profiles`).
"""

if __name__ != "convgen.backends.event_model":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.backends.event_model, not as {__name__}")
