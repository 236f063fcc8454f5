"""One node's facts document (`preflight.facts/1`), read safely.

The document is what the collector saw: raw text of commands, files by path. It is
written by another program on a machine that may be ill, so nothing in it is trusted to
be there or to be whole. Every accessor either returns what was read or raises `Unread`
with a reason; the engine turns that into UNKNOWN, never into PASS.

Commands are found by what they read (see `checks.commands`). A value sampled several
times is a list of entries, each with "t"; asked for one value, the newest counts. An
entry may carry "bytes", the true length of its text in UTF-8: a shorter one is cut off.
"""

from __future__ import annotations

import json
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import update_wrapper
from typing import Any, Concatenate, ParamSpec, TypeVar

from checks.commands import Reading, Words, reading
from checks.errors import UsageError

SCHEMA = "preflight.facts/1"
NO_SUCH_TOOL = 127
"""The return code of a shell, and of the collector, for a program that is not there."""

T = TypeVar("T")
P = ParamSpec("P")
_Read = str | tuple[str, ...]
"""One command or path, or all that a derived value rests on."""
_LAST = "\U0010ffff"
"""No path has it: what begins with a stem sorts before the stem and this."""
_Place = tuple[str, str, Words]
"""Program, where it ran, the first of its words (and once without)."""


class Unread(Exception):
    """A fact could not be read; `kind` says how, `reason` is one line for the operator.

    Kinds: `missing` (the document has no such entry), `absent` (read, and it is not
    there: ENOENT), `denied`, `errno` (another one), `no tool`, `timeout`, `truncated`,
    `failed` (return code), `empty`, `garbled`.
    """

    def __init__(self, kind: str, what: str, reason: str) -> None:
        super().__init__(f"{what}: {reason}")
        self.kind = kind
        self.what = what
        self.reason = reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One run of one command."""

    reading: Reading
    rc: int
    stdout: str
    stderr: str
    ms: float
    timed_out: bool
    truncated: bool
    t: float | None

    @property
    def line(self) -> str:
        return self.reading.line

    def ended(self) -> Result:
        """Itself, if the program ran to its end and its output is whole."""
        if self.timed_out:
            raise Unread("timeout", self.line, f"no answer within {self.ms:.0f} ms")
        if self.rc == NO_SUCH_TOOL:
            raise Unread("no tool", self.line, "the program is not installed")
        if self.truncated:
            raise Unread("truncated", self.line, "the output is truncated")
        return self

    def text(self, *, ok: Sequence[int] = (0,)) -> str:
        """Its output; `Unread` unless it ended with one of these codes, with output."""
        if self.ended().rc not in ok:
            raise Unread("failed", self.line, f"rc {self.rc}: {self.complaint}")
        if not self.stdout.strip():
            raise Unread("empty", self.line, "it printed nothing")
        return self.stdout

    def json(self) -> Any:
        """Its output as JSON; what does not parse is garbled, most likely truncated."""
        try:
            return json.loads(self.text())
        except (ValueError, RecursionError) as error:
            raise Unread("garbled", self.line, f"no whole JSON: {error}") from None

    @property
    def complaint(self) -> str:
        """The first line it wrote to stderr, or to stdout, shortened."""
        lines = (self.stderr.strip() or self.stdout.strip()).splitlines()
        return lines[0].strip()[:200] if lines else "without a word"


class Facts:
    """The facts of one node; see the module."""

    __slots__ = (
        "_cache",
        "_commands",
        "_credits",
        "_files",
        "_found",
        "_paths",
        "_places",
        "_reads",
        "document",
        "name",
    )

    def __init__(self, document: Mapping[str, Any], name: str = "") -> None:
        self.document = document
        self.name = name or _text(_mapping(document.get("node")).get("hostname"))
        self._commands: dict[str, list[tuple[Reading, Any]]] | None = None
        self._files = _mapping(document.get("files"))
        self._paths: list[str] | None = None
        self._places: dict[_Place, list[tuple[Reading, Any]]] = {}
        self._found: dict[tuple[str, Words, str], tuple[Result, ...]] = {}
        self._cache: dict[Any, tuple[Any, Unread | None, tuple[str, ...]]] = {}
        self._reads: list[_Read] = []
        self._credits: dict[tuple[str | int, ...], tuple[str, ...]] = {}

    # What the document says of itself

    @property
    def node(self) -> Mapping[str, Any]:
        """`hostname`, `boot_id`, `virt`, `wall`, `role`, `cohort`, as far as known."""
        return _mapping(self.document.get("node"))

    @property
    def collector(self) -> Mapping[str, Any]:
        return _mapping(self.document.get("collector"))

    def said(self, key: str) -> str:
        """A field of `node` as text; "" where it is missing."""
        return _text(self.node.get(key))

    @property
    def tells_something(self) -> bool:
        """Whether anything at all could be read: no judgement rests on nothing."""
        commands = _mapping(self.document.get("cmds")).values()
        if any(_ran(each) for entry in commands for each in _entries(entry)):
            return True
        files = self._files.values()
        return any(_was_seen(each) for entry in files for each in _entries(entry))

    # Commands

    def find(self, program: str, *words: str, where: str = "") -> tuple[Result, ...]:
        """The newest run of every command that reads this; exact matches first.

        Words are canonical and match as a prefix: `find("ip", "route")` also finds
        `ip -j route show table all`. Truncated and failed runs are among them.
        """
        key = (program, words, where)
        results = self._found.get(key)
        if results is None:
            results = self._found[key] = self._sought(program, words, where)
        for result in results:
            self._reads.append(result.reading.line)
        return results

    def _sought(self, program: str, words: Words, where: str) -> tuple[Result, ...]:
        found = [
            (len(each.words), each.line, each, entry)
            for each, entry in self._at(program, words, where)
        ]
        if len(found) > 1:
            found.sort(key=lambda one: one[:2])
        return tuple(_result(each, _entries(entry)[-1]) for _, _, each, entry in found)

    def result(self, program: str, *words: str, where: str = "") -> Result:
        """The first that `find` finds which ended well, else the first; else Unread."""
        found = self.find(program, *words, where=where)
        if not found:
            raise Unread("missing", " ".join((program, *words)), "not collected")
        whole = [r for r in found if r.rc == 0 and not (r.timed_out or r.truncated)]
        return (whole or list(found))[0]

    def samples(self, program: str, *words: str, where: str = "") -> tuple[Result, ...]:
        """Every sample of the command with the most samples, oldest first."""
        found = [
            _results(each, entry)
            for each, entry in sorted(
                self._at(program, words, where), key=lambda one: one[0].line
            )
        ]
        if not found:
            raise Unread("missing", " ".join((program, *words)), "not collected")
        most = max(found, key=len)
        self.note(most[0].line)
        return most

    def runs(self) -> Iterator[tuple[Reading, Mapping[str, Any]]]:
        """The newest raw entry of every command on the host; not noted as read."""
        for _, found in sorted(self._index().items()):
            for each, entry in found:
                if not each.where:
                    yield each, _entries(entry)[-1]

    def denied_paths(self) -> tuple[str, ...]:
        """Paths that could not be read for want of privilege. Sorted; not noted."""
        found = []
        for path, entry in self._files.items():
            newest = entry if type(entry) is dict else _entries(entry)[-1]
            if newest.get("errno") in {"EACCES", "EPERM"}:
                found.append(path)
        return tuple(sorted(found))

    def places(self) -> tuple[str, ...]:
        """Where commands ran besides the host: network namespaces, pods, processes."""
        every = {
            each.where for found in self._index().values() for each, _ in found
        } - {""}
        return tuple(sorted(every))

    def _at(self, program: str, words: Words, where: str) -> list[tuple[Reading, Any]]:
        """Commands of a program at a place whose words begin with these."""
        self._index()
        found = self._places.get((program, where, words[:1]), [])
        if len(words) < 2:
            return found
        return [one for one in found if one[0].words[: len(words)] == words]

    def _index(self) -> dict[str, list[tuple[Reading, Any]]]:
        if self._commands is None:
            self._commands = {}
            for line, entry in _mapping(self.document.get("cmds")).items():
                each = reading(line)
                self._commands.setdefault(each.program, []).append((each, entry))
                for words in {(), each.words[:1]}:
                    place = (each.program, each.where, words)
                    self._places.setdefault(place, []).append((each, entry))
        return self._commands

    # Files

    def entry(self, path: str) -> Mapping[str, Any]:
        """The newest raw entry of a path; Unread `missing` where there is none."""
        return self.entries_of(path)[-1]

    def entries_of(self, path: str) -> tuple[Mapping[str, Any], ...]:
        """Every sample of a path, oldest first."""
        found = self._files.get(path)
        if found is None:
            path, asked = _other_spelling(path), path
            found = self._files.get(path)
            if found is None:
                raise Unread("missing", asked, "not collected")
        self._reads.append(path)
        return (found,) if type(found) is dict else _entries(found)

    def text(self, path: str) -> str:
        """The text of a file, as read."""
        return _file_text(path, self.entry(path))

    def line(self, path: str) -> str:
        """The text of a one-line file without blanks around; empty text is returned."""
        return self.text(path).strip()

    def number(self, path: str) -> int:
        """A whole number, as sysfs and procfs print them."""
        return _number(path, self.line(path))

    def numbers(self, path: str) -> tuple[tuple[float | None, int], ...]:
        """Every sample of a counter as (t, value), oldest first."""
        return tuple(
            (_seconds(entry.get("t")), _number(path, _file_text(path, entry)))
            for entry in self.entries_of(path)
        )

    def link(self, path: str) -> str:
        """The target of a symbolic link, as read."""
        entry = self.entry(path)
        if isinstance(entry.get("link"), str):
            return str(entry["link"])
        _refuse_errno(path, entry)
        raise Unread("garbled", path, "not a symbolic link")

    def exists(self, path: str) -> bool:
        """Whether it is there. Unread where nobody looked, or looking was denied."""
        try:
            entry = self.entry(path)
        except Unread:
            if self._below(path):
                return True
            raise
        errno = entry.get("errno")
        if errno in {"ENOENT", "ENODEV", "ENOTDIR"}:
            return False
        if errno in {"EACCES", "EPERM"} or (errno is not None and not entry):
            _refuse_errno(path, entry)
        return True

    def names(self, path: str) -> tuple[str, ...]:
        """What is in a directory: its entries, and what paths below it tell. Sorted.

        An absent directory is empty; Unread where nothing is known of it.
        """
        below = {name.split("/", 1)[0] for name in self._below(path)}
        try:
            entry = self.entry(path)
        except Unread:
            if below:
                return tuple(sorted(below))
            raise
        listed = entry.get("entries")
        if isinstance(listed, list):
            below |= {str(name) for name in listed}
        elif not below and entry.get("errno") not in {"ENOENT", "ENOTDIR"}:
            _refuse_errno(path, entry)
            raise Unread("garbled", path, "not a directory")
        return tuple(sorted(below))

    def matching(self, pattern: str) -> tuple[str, ...]:
        """Known paths that match a shell pattern, `*` within one level. Sorted."""
        stem = pattern.split("*", 1)[0].split("[", 1)[0].split("?", 1)[0]
        depth = pattern.count("/")
        return tuple(
            path
            for path in self._with_prefix(stem)
            if path.count("/") == depth and fnmatchcase(path, pattern)
        )

    def _below(self, path: str) -> list[str]:
        stem = f"{path.rstrip('/')}/"
        return [found[len(stem) :] for found in self._with_prefix(stem)]

    def _with_prefix(self, stem: str) -> list[str]:
        if self._paths is None:
            self._paths = sorted(self._files)
        begin = bisect_left(self._paths, stem)
        return self._paths[begin : bisect_left(self._paths, stem + _LAST, begin)]

    # What was read, for `source` of findings

    def note(self, what: str) -> None:
        """Remembers that a command or path was read for the present judgement."""
        self._reads.append(what)

    def credited(self, ask: Callable[[], T]) -> tuple[T, tuple[str, ...]]:
        """What is answered, and what was read for it: each once, in order."""
        outer, self._reads = self._reads, []
        try:
            answer = ask()
        finally:
            credit = self._credit(self._reads)
            self._reads = outer
            if credit:
                outer.append(credit)
        return answer, credit

    def once(self, key: Any, build: Callable[[], T]) -> T:
        """Builds a derived value once; an `Unread` is remembered and raised again."""
        known = self._cache.get(key)
        if known is None:
            known = self._cache[key] = self._built(build)
        value, refusal, credit = known
        if credit:
            self._reads.append(credit)
        if refusal is not None:
            raise Unread(refusal.kind, refusal.what, refusal.reason)
        return value  # type: ignore[no-any-return]

    def forget(self) -> None:
        """Drops what was derived; it is derived anew where it is asked for again."""
        self._commands = self._paths = None
        for cache in (self._places, self._found, self._cache, self._credits):
            cache.clear()
        self._reads.clear()

    def _built(
        self, build: Callable[[], Any]
    ) -> tuple[Any, Unread | None, tuple[str, ...]]:
        def attempt() -> tuple[Any, Unread | None]:
            try:
                return build(), None
            except Unread as error:
                return None, error.with_traceback(None)

        (value, refusal), credit = self.credited(attempt)
        return value, refusal, credit

    def _credit(self, reads: Sequence[_Read]) -> tuple[str, ...]:
        """What was read, each once, in the order of its first reading.

        Most judgements read what others have read before. So whole credits are kept
        among the reads, and those put together of the same are put together once: they
        are told apart by identity, which holds because all of them are kept here.
        """
        if not reads:
            return ()
        if len(reads) == 1 and type(reads[0]) is tuple:
            return reads[0]
        key = tuple([one if type(one) is str else id(one) for one in reads])
        known = self._credits.get(key)
        if known is None:
            every: dict[str, None] = {}
            for one in reads:
                if isinstance(one, str):
                    every[one] = None
                else:
                    every.update(dict.fromkeys(one))
            known = self._credits[key] = tuple(every)
        return known


def derived(
    build: Callable[Concatenate[Facts, P], T],
) -> Callable[Concatenate[Facts, P], T]:
    """Decorates a reader of facts: built once a node, refusals are remembered too."""

    def once(facts: Facts, /, *args: P.args, **kwargs: P.kwargs) -> T:
        key = (build, args, tuple(sorted(kwargs.items())) if kwargs else ())
        return facts.once(key, lambda: build(facts, *args, **kwargs))

    update_wrapper(once, build)
    return once


def first(*readers: Callable[[], T]) -> T:
    """The first reader that can be read; if none, the last refusal that says most."""
    refused: list[Unread] = []
    for read in readers:
        try:
            return read()
        except Unread as error:
            refused.append(error)
    telling = [error for error in refused if error.kind != "missing"]
    raise (telling or refused)[0]


def documents(loaded: Any, origin: str) -> list[Mapping[str, Any]]:
    """The documents in one JSON value: one, or an array of them; checked for schema."""
    every = loaded if isinstance(loaded, list) else [loaded]
    for at, each in enumerate(every):
        where = origin if not isinstance(loaded, list) else f"{origin}[{at}]"
        if not isinstance(each, Mapping):
            raise UsageError(
                f"{where} is not a facts document", "an object is expected"
            )
        if each.get("schema") != SCHEMA:
            raise UsageError(
                f"{where}: schema is {each.get('schema')!r}, not {SCHEMA!r}",
                "collect it again with `preflight collect`",
            )
    return every


def _ran(entry: Mapping[str, Any]) -> bool:
    """A command ran to an end and said something, and not only that it may not."""
    if entry.get("timeout") is True or entry.get("rc") in {None, -1, NO_SUCH_TOOL}:
        return False
    complaint = _text(entry.get("stderr")).lower()
    denied = "permission denied" in complaint or "not permitted" in complaint
    return bool(_text(entry.get("stdout")).strip() or (complaint and not denied))


def _was_seen(entry: Mapping[str, Any]) -> bool:
    """A path was looked at; that it is absent is a fact, that it is denied is none."""
    seen = {"text", "link", "entries", "mode"} & entry.keys()
    return bool(seen) or entry.get("errno") in {"ENOENT", "ENOTDIR", "ENODEV", "EINVAL"}


def _results(each: Reading, entry: Any) -> tuple[Result, ...]:
    return tuple(_result(each, one) for one in _entries(entry))


def _result(each: Reading, entry: Mapping[str, Any]) -> Result:
    stdout = _text(entry.get("stdout"))
    rc = entry.get("rc")
    missing = entry.get("errno") == "ENOENT"
    return Result(
        reading=each,
        rc=NO_SUCH_TOOL if missing else rc if isinstance(rc, int) else -1,
        stdout=stdout,
        stderr=_text(entry.get("stderr")),
        ms=_seconds(entry.get("ms")) or 0.0,
        timed_out=entry.get("timeout") is True,
        truncated=_is_short(stdout, entry),
        t=_seconds(entry.get("t")),
    )


def _entries(found: Any) -> tuple[Mapping[str, Any], ...]:
    """One entry or a list of samples, as a tuple in the order of their times."""
    if type(found) is dict:
        return (found,)
    every = found if isinstance(found, list) else [found]
    whole = [_mapping(each) for each in every] or [{}]
    return tuple(sorted(whole, key=lambda each: _seconds(each.get("t")) or 0.0))


def _file_text(path: str, entry: Mapping[str, Any]) -> str:
    _refuse_errno(path, entry)
    text = entry.get("text")
    if not isinstance(text, str):
        raise Unread("garbled", path, "no text in its entry")
    if _is_short(text, entry):
        raise Unread("truncated", path, "the text is truncated")
    return text


def _refuse_errno(path: str, entry: Mapping[str, Any]) -> None:
    errno = entry.get("errno")
    if errno is None:
        return
    kinds = {"ENOENT": "absent", "ENOTDIR": "absent", "ENODEV": "absent"}
    denied = {"EACCES": "denied", "EPERM": "denied"}
    raise Unread({**kinds, **denied}.get(str(errno), "errno"), path, str(errno))


def _is_short(text: str, entry: Mapping[str, Any]) -> bool:
    size = entry.get("bytes")
    if not isinstance(size, int):
        return False
    return len(text.encode("utf-8", "surrogatepass")) < size


def _number(path: str, text: str) -> int:
    try:
        return int(text.strip(), 0)
    except ValueError:
        raise Unread("garbled", path, f"not a number: {text.strip()[:40]!r}") from None


def _seconds(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _mapping(value: Any) -> Mapping[str, Any]:
    if type(value) is dict:  # the usual case, and an abstract class is slow to ask
        return value
    return value if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _other_spelling(path: str) -> str:
    """Its other name: /var/run is a link to /run on every present system."""
    if path.startswith("/var/run/"):
        return path.removeprefix("/var")
    return f"/var{path}" if path.startswith("/run/") else path
