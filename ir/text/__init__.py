"""The text of the IR: infix expressions, indented statements, kernels under a header. docs/ir.md has the grammar.

`show` and `listing` write for people, `to_text` everything that `parse` needs to return the identical node. Both
write one form: `templates` compiles the `form` of a statement class for `writer` and `reader` alike, and `declared`
has both directions of what a header declares.
"""

if __name__ != "convgen.ir.text":  # a second copy of a module would mean a second intern table
    raise ImportError(f"import this package as convgen.ir.text, not as {__name__}")

from typing import Any

from convgen.ir.text.writer import ListingLine as ListingLine
from convgen.ir.text.writer import excerpt as excerpt
from convgen.ir.text.writer import in_short as in_short
from convgen.ir.text.writer import infix as infix
from convgen.ir.text.writer import listing as listing
from convgen.ir.text.writer import show as show
from convgen.ir.text.writer import to_text as to_text


def parse(text: str) -> Any:
    """Return the node, or the program, that a text describes. Raises UserError for a text that describes none.

    Variables and sites without a number get the next one above the greatest in the text. So do variables that are made
    later.
    """
    from convgen.ir.text.reader import read  # here, because few commands need it

    return read(text)
