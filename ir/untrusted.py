"""Reading untrusted files: regular files of bounded size, YAML without aliases, short messages."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Any, BinaryIO

from convgen.ir.error import UserError, visible

if TYPE_CHECKING:
    import yaml

MOST_BYTES = 1 << 28  #: bytes of a file; code objects of whole libraries have some ten million
MOST_RECORD = 1 << 23  #: bytes of JSON; the parsed Python values take up to 30 times as many
_MOST_YAML = 1 << 19  #: bytes; the reader takes about 4 s for one MiB
_MOST_NODES = 20_000  #: nodes of a YAML document; a kernel's metadata has about 150
_MOST_DIGITS = 40  #: characters of a YAML scalar that is read as a number


def shown(text: object, most: int = 60) -> str:
    """Return at most `most` characters of an untrusted text, unprintable ones escaped."""
    given = str(text)
    clipped = given if len(given) <= most else f"{given[: most - 3]}..."
    return visible(clipped)


def opened(path: str | os.PathLike[str], wanted: str = "a file", most: int = MOST_BYTES, at: str = "") -> BinaryIO:
    """Open a regular file of at most `most` bytes for reading. `wanted` and `at` (an option) complete error messages.

    Raises UserError for anything else, without waiting: a pipe would block the opening, a device never ends.
    """
    tail = f", at {at}" if at else ""
    name = shown(os.fspath(path), 200)
    try:
        _check_kind(os.stat(path), name, wanted, most, tail)  # opening a device may have side effects
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError as error:
        raise UserError(f"cannot read {name}: {error.strerror}{tail}") from None
    except ValueError:  # Python releases word it differently
        raise UserError(f"cannot read {name}: a null byte in its name{tail}") from None
    try:
        _check_kind(os.fstat(number), name, wanted, most, tail)  # the path may name another file by now
        return open(number, "rb", buffering=0)
    except BaseException:
        os.close(number)
        raise


def _check_kind(status: os.stat_result, name: str, wanted: str, most: int, tail: str) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"cannot read {name}: Is a directory{tail}")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"given {name} that is a device or a pipe, wanted {wanted}{tail}")
    if status.st_size > most:
        raise _too_large(name, wanted, most, tail)


def _too_large(name: str, wanted: str, most: int, tail: str) -> UserError:
    size = f"{most >> 20} MiB" if most >= 1 << 20 else f"{most} bytes"
    return UserError(f"given {name} of more than {size}, wanted {wanted}{tail}")


def read(path: str | os.PathLike[str], wanted: str = "a file", most: int = MOST_BYTES, at: str = "") -> bytes:
    """Return the content of a regular file of at most `most` bytes. Raises UserError as `opened` does."""
    content, name, tail = bytearray(), shown(os.fspath(path), 200), f", at {at}" if at else ""
    with opened(path, wanted, most, at) as file:
        try:
            while len(content) <= most and (part := file.read(most + 1 - len(content))):  # /proc reports no size
                content += part
        except OSError as error:
            raise UserError(f"cannot read {name}: {error.strerror}{tail}") from None
    if len(content) > most:
        raise _too_large(name, wanted, most, tail)
    return bytes(content)


def yaml_of(content: bytes | str, what: str) -> Any:
    """Return the value of a YAML document of plain data. `what` names it in errors.

    Raises UserError for aliases, which make values of any size from a few bytes, for more than a limit of bytes or
    nodes, and for numbers that take long to convert.
    """
    import yaml  # which takes a while to load

    if len(content) > _MOST_YAML:
        raise UserError(f"given {what} of {len(content)} bytes of YAML, wanted at most {_MOST_YAML}")
    try:
        return yaml.load(content, _loader())
    except (yaml.YAMLError, ArithmeticError, ValueError, TypeError, LookupError, RecursionError) as error:
        reason = shown(" ".join(str(error).split()), 200)
        raise UserError(f"{what} is not YAML of plain data: {reason}") from None


def _loader() -> type[yaml.SafeLoader]:
    import yaml

    class Loader(yaml.SafeLoader):
        """PyYAML's safe loader with limits."""

        nodes = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                event: Any = self.peek_event()  # type: ignore[no-untyped-call]
                raise ValueError(f"an alias in line {event.start_mark.line + 1}, wanted none")
            self.nodes += 1
            if self.nodes > _MOST_NODES:
                raise ValueError(f"more than {_MOST_NODES} values")
            node: Any = super().compose_node(parent, index)
            if node.tag in _NUMBERS and len(node.value) > _MOST_DIGITS:
                raise ValueError(f"a number of {len(node.value)} characters, wanted at most {_MOST_DIGITS}")
            return node

    return Loader


#: Tags of scalars whose conversion is quadratic in the number of digits (base 60).
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
