"""Find benchdnn's driver lines in a text, and the place where their words begin.

A driver line consists of options and descriptors only, perhaps after the prefix of a log or a call of benchdnn,
`convgen conv`, `convgen deconv` or `convgen gemm`. A line with other words is a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from itertools import pairwise

from convgen.ir.error import UserError
from convgen.ir.record import frozen
from convgen.problem import grammar, options

_OPTION = re.compile(r"--[A-Za-z][\w-]*(=.*)?|-[A-Za-z]\w*(=.*)?")
_CONV = re.compile(rf"_*(?:{'|'.join(sorted(grammar.KEYS, key=len, reverse=True))})[0-9]")
_KEY_ALONE = re.compile(rf"_*(?:{'|'.join(sorted(grammar.KEYS, key=len, reverse=True))})")
_PRODUCT = re.compile(r"[0-9]+(x[0-9]+)+:.*")
_MATRIX = re.compile(r"[0-9]+(x[0-9]+)+")  #: half a product, or a size in a sentence
_OF_OTHERS = re.compile(r"[0-9]+(x[0-9]+)*(:[0-9x]+)*|[a-z]+[0-9][\w.:\"]*")  #: descriptors of benchdnn's other drivers

#: option of convgen's commands that does not describe a problem -> whether a value follows
_HAS_VALUE = {
    **dict.fromkeys(("-o", "--target", "--config", "--registry", "--seed", "--run-groups", "--on"), True),
    **dict.fromkeys(("--disable", "--dump", "--dump-dir"), True),
    **dict.fromkeys(("--run", "--json", "--no-cache", "-v", "-g", "--check-passes", "--time-passes"), False),
}

#: a driver line contains one of these
_HINT = re.compile(rf"(?:^|[\s\"'`(])(?:-[-A-Za-z]|_*(?:{'|'.join(grammar.KEYS)})|[0-9]+x[0-9x]+:)")
_PREFIXES = 16  #: most prefixes before a line
_BENCHDNN = re.compile(r"(?:\S*/)?(?:benchdnn)(?:\.exe)?")
_CONVGEN = re.compile(r"(?:\S*/)?convgen")
_COMMANDS = {"conv": options.CONV, "deconv": options.DECONV, "gemm": options.MATMUL}
_BRACKETED = re.compile(r"[\[({<][^\s\])}>]*([ ][^\])}>]{0,40})?[\])}>]:?[,|]?")
_STAMP = (
    r"\[?[0-9]{2,4}[-/.][0-9]{1,2}[-/.][0-9]{1,4}(?:[T_ ][0-9:.,]+(?:Z|[+-][0-9:]+)?)?\]?:?",  # a date, and a time
    r"\[?[0-9]{1,2}:[0-9]{2}(?::[0-9]{2})?(?:[.,][0-9]+)?(?:Z|[+-][0-9:]+)?\]?:?",  # a time
    r"\[?\s*[0-9]+[.,][0-9]+\]?:?",  # seconds
    r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),?",
    r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+[0-9]{1,2}(?:\s+[0-9]{4})?",
    r"[0-9]{1,2}\s+(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)(?:\s+[0-9]{4})?",
    r"[0-9]{10,19}:?",  # seconds or more since 1970
    r"[IWEF][0-9]{4}",  # glog: a level, month and day
)
_LEVEL = (
    r"(?:TRACE|DEBUG|INFO|NOTE|NOTICE|WARN|WARNING|ERROR|FATAL|CRITICAL)(?::[\w.]+)*:?",
    r"(?i:trace|debug|info|note|notice|warn|warning|error|stdout|stderr|out|err|log|cmd|command|repro|running)\s*[:=>]+",
    r"[\w./-]+\.(?:py|cc?|cpp|hpp|h|sh|rs|go|log|txt|yml):[0-9]+:?(?:in)?",  # a place
    r"[\w.@/-]+\[[0-9]+\]:",  # syslog: a program and its number
    r"[\w.-]+[0-9]?:(?=\s)",  # a rank, a host, a program
    r"[\w./-]+\s*\|",  # a service or container
    r"(?:PASSED|FAILED|SKIPPED|UNIMPLEMENTED|MISTRUSTED|LISTED|EXECUTED|INITIALIZED)",
    r"[0-9]+:(?:PASSED|FAILED|SKIPPED|UNIMPLEMENTED|MISTRUSTED|LISTED|EXECUTED|INITIALIZED)\s*(?:\([^)]*\))?",
    r"__REPRO:",
    r"E\s|>+\s|[-*+•]\s|\$\s|#\s|%\s",  # pytest's, quoted mail, lists, prompts
    r"[0-9]{1,6}[.):]\s|[0-9]{1,9}\s(?=\S)|[0-9]+\t",  # numbers of lines, counts
    r"-{2,}\s|={2,}\s|\|\s|:\s|-\s|—\s",
    r"(?:time|nice|sudo|exec|env|nohup|stdbuf|taskset|numactl|timeout)\b",
    r"[A-Za-z_]\w*=\S*",  # the environment of a command
)
_PREFIX = re.compile(rf"\s*(?:{_BRACKETED.pattern}|{'|'.join((*_STAMP, *_LEVEL))})")


@frozen
class DriverLine:
    """The options and descriptors of a line, of a command of its own or of a file, whose options hold further."""

    text: str
    is_command: bool = False


def find(text: str) -> DriverLine | None:
    """Return the driver line within a text, without prefixes; None for a sentence."""
    if not _HINT.search(text):
        return None
    words = _command(text.split())
    if words is not None:
        return _command_line(words)
    for line in _without_prefixes(text):
        if _is_driver(line.split()):
            return DriverLine(line)
    return _after_words(text.split())


def _without_prefixes(text: str) -> Iterator[str]:
    """Yield a text, then the text after one, two and more prefixes of a log."""
    line = _unquoted(text)
    for _ in range(_PREFIXES):
        if not line:
            return
        yield line
        prefix = _PREFIX.match(line)
        if prefix is None or not prefix[0]:
            return
        line = _unquoted(line[prefix.end() :])


def joint(text: str, more: str) -> str | None:
    """Return what joins a driver line that ends in a backslash with the next line: "" or a space; None for other texts.

    In a file the two parts form one word, unless an option follows; words of a command stay separate.
    """
    if _command([*text.split(), ""]) is not None:
        return " "
    if any(_is_driver(line.split()) for line in _without_prefixes(text)):
        return " " if more.startswith("--") else ""
    return None


def _command(words: Sequence[str]) -> list[str] | None:
    """Return the words that describe problems in a call of benchdnn or convgen; None without such a call."""
    for number, (word, after) in enumerate(pairwise(words)):
        bare = word.lstrip("\"'`(")
        if _BENCHDNN.fullmatch(bare):
            return list(_up_to_operator(words[number + 1 :]))
        if _CONVGEN.fullmatch(bare) and after in _COMMANDS:
            driver = _COMMANDS[after]
            return _of_command(_up_to_operator(words[number + 2 :]), driver)
    return None


def _command_line(words: Sequence[str]) -> DriverLine | None:
    """Return the driver line of a command; None without a descriptor or batch file, or with other words."""
    if not _is_driver(words) or not any(_is_complete(word) or "--batch" in word for word in words):
        return None
    return DriverLine(" ".join(words), is_command=True)


def _after_words(words: Sequence[str]) -> DriverLine | None:
    """Return the driver line at the end of a sentence: options, and whole descriptors; None without one."""
    first = next((number for number, word in enumerate(words) if word.startswith("--")), len(words))
    own = words[first:]
    if not own or not _is_driver(own) or not any(_is_sound(word) for word in own):
        return None
    return DriverLine(" ".join(own))


def _is_sound(word: str) -> bool:
    """Whether a word is a whole descriptor."""
    if word.startswith("-"):
        return False
    try:
        grammar.scan_matmul(word) if word[:1].isdigit() else grammar.scan(word)
    except UserError:
        return False
    return _is_complete(word)


def _unquoted(text: str) -> str:
    """Return a text without the quotes around it."""
    line = text.strip()
    inner = line.rstrip(",;")
    while len(inner) > 1 and inner[0] in "\"'`" and inner[-1] == inner[0] and inner[0] not in inner[1:-1]:
        line = inner = inner[1:-1].strip()
    return line


def _up_to_operator(words: Sequence[str]) -> Iterator[str]:
    """Return the words of a command without quotes, up to a pipe or redirection."""
    for word in words:
        if re.match(r"[0-9&]?>|<|[|;&]", word):
            return
        yield re.sub("^[\"'`]|[\"'`)]+$", "", word)


def _of_command(words: Iterator[str], driver: str) -> list[str]:
    """Return the words that describe problems after a command of convgen, options first."""
    options_first, descriptors = [f"--{driver}"], list[str]()
    for word in words:
        name, equals, _ = word.partition("=")
        if name in _HAS_VALUE:
            if _HAS_VALUE[name] and not equals:
                next(words, "")
        elif not word.startswith("-"):
            descriptors.append(word)
        else:
            known = options.SPELLED[driver].get(name.lstrip("-"))
            options_first.append(word if equals or known is None else f"{word}={next(words, '')}")
    return [*options_first, *descriptors]


def _is_driver(words: Collection[str]) -> bool:
    """Whether words are benchdnn's: each an option, the value of one, or a descriptor.

    An unknown option has a value only beside something that is surely benchdnn's.
    """
    is_sure, is_open, driver = False, False, ""
    unknown = list[str]()
    rest = iter(words)
    for word in rest:
        name, equals, _ = word.lstrip("-").partition("=")
        if word.startswith("--") and name in (*options.DRIVERS, *options.OTHER_DRIVERS) and not equals:
            is_sure, driver = True, name
        elif word.startswith("-") and _OPTION.fullmatch(word) is not None:
            is_known = _is_known(word, name, driver)
            is_sure |= is_known
            is_open = not equals and name != "reset" and word.startswith("--")
            if is_open and is_known:
                next(rest, "")
                is_open = False
            continue
        elif _is_descriptor(word, driver):
            is_sure |= _is_complete(word)
        elif is_open or _MATRIX.fullmatch(word):
            unknown.append(word)
        else:
            return False
        is_open = False
    return is_sure or not unknown


def _is_known(word: str, name: str, driver: str) -> bool:
    if not word.startswith("--"):
        return False
    known = any(name in options.SPELLED[each] for each in options.DRIVERS)
    return known or name in ("reset", "match", "start", "batch") or driver in options.OTHER_DRIVERS


def _is_descriptor(word: str, driver: str) -> bool:
    """Whether a word looks like a descriptor, if a wrong one."""
    if driver in options.OTHER_DRIVERS and _OF_OTHERS.fullmatch(word):
        return True
    return _CONV.match(word) is not None or _PRODUCT.fullmatch(word) is not None or _is_key_alone(word)


def _is_key_alone(word: str) -> bool:
    """Whether a word is keys and sizes that begins with a key without one."""
    match = _KEY_ALONE.match(word)
    return match is not None and re.fullmatch(r"[_a-z]+[0-9][\w\"]*", word) is not None and _keys(word) > 1


def _is_complete(word: str) -> bool:
    """Whether a word has more than one key, or sizes of two matrices."""
    return _keys(word) > 1 or (":" in word and _PRODUCT.fullmatch(word) is not None)


def _keys(word: str) -> int:
    return len(re.findall(rf"(?:{'|'.join(grammar.KEYS)})[0-9]+", word))
