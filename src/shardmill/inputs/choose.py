"""The names in a folder → those that are data; the others are counted by kind, so that the user can be told."""

import fnmatch
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from shardmill.documents.detect import FORMAT_OF_SUFFIX, is_known
from shardmill.inputs.input_files import InputFiles
from shardmill.io.compression import SUFFIXES
from shardmill.system.names import show

_KNOWN_SUFFIXES = tuple(FORMAT_OF_SUFFIX)
# Files of many documents. Not .json, which may well be metadata itself.
_RECORDS = tuple(suffix for suffix, kind in FORMAT_OF_SUFFIX.items() if kind != "text" and suffix != ".json")
_RECORDS += tuple(suffix + packed for suffix in _RECORDS for packed in SUFFIXES)
_CARD = ".md"
# What a folder says about itself, and what tools keep in it.
_ABOUT = re.compile(
    r"(?:readme|licen[cs]e|copying|changelog|contributing|code_of_conduct|dataset[_-]?card)(?:[._-].*)?\.(?:md|txt|text)"
    r"|(?:authors|changes|citation|notice|security)\.(?:md|txt|text)"
    r"|(?:requirements|cmakelists|robots|merges|checksums|(?:md5|sha\d*)(?:sums?)?)\.txt"
    r"|(?:package|package-lock|tsconfig|config|generation_config|metadata|schema|croissant)\.json"
    r"|(?:dataset_infos?|dataset_dict|state|manifest|run)\.json|(?:manifest\.inputs|rejects)\.jsonl"
    r"|(?:tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json",
    re.IGNORECASE,
)
_GROUPS = _HIDDEN, _EXCLUDED, _NOT_INCLUDED, _OTHERS = "hidden", "excluded", "not included", "other"
_MOST_KINDS = 100
_KINDS_SHOWN = 8


class Chooser:
    """Which files are taken from folders and globs. A file that is named itself is always taken.

    With include, what matches it and nothing else; otherwise what looks like data. Never what matches exclude. A pattern
    is compared with the end of the path below the folder: *.md and drafts/* match at any depth.

    >>> Chooser(exclude=["drafts/*"]).of_paths(["README.md", "a.jsonl", "drafts/b.jsonl"])
    ['a.jsonl']
    """

    def __init__(self, include: Sequence[str] = (), exclude: Sequence[str] = ()) -> None:
        self._included, self._excluded = _matcher(include), _matcher(exclude)
        self.cards_are_data = bool(include)
        self.left_out: Counter[str] = Counter()
        """How many files were not taken, by name or kind."""
        self._lock = threading.Lock()

    def of_paths(self, paths: Iterable[str]) -> list[str]:
        """What is taken of all files below a folder, by their paths below it."""
        folders: dict[str, Folder] = {}
        found = []
        for path in paths:
            below, _, name = path.rpartition("/")
            if below not in folders:
                folders[below] = Folder(self, below + "/" if below else "")
            if folders[below].may_take(name):
                found.append(path)
        return [path for path in found if folders[path.rpartition("/")[0]].takes(path)]

    def from_glob(self, path: str) -> bool:
        """Whether a file is taken that a glob found, by its path below the part without * ? [."""
        if self._excluded is not None and self._excluded(path):
            return self.leave_out(_EXCLUDED)
        return self._included is None or bool(self._included(path)) or self.leave_out(_NOT_INCLUDED)

    def takes(self, name: str, below: str) -> bool:
        """Whether a file is taken from a folder, unless it is a card next to records."""
        if name.startswith(".") or below.startswith(".") or "/." in below:
            return self.leave_out(_HIDDEN)
        if self._included is not None or self._excluded is not None:
            if not self.from_glob(below + name):
                return False
            if self._included is not None:
                return True
        if not name.endswith(_KNOWN_SUFFIXES) and not is_known(name):
            return self.leave_out(kind_of(name))
        return _ABOUT.fullmatch(name) is None or self.leave_out(name)

    def leave_out(self, kind: str) -> bool:
        with self._lock:
            _count(kind, self.left_out)
        return False


class Folder:
    """Chooses among the files of one folder: next to records, a .md file is a dataset card, not a document."""

    def __init__(self, chooser: Chooser, below: str) -> None:
        self._chooser, self._below = chooser, below
        self._holds_records = False

    def may_take(self, name: str) -> bool:
        """Ask this for every file first."""
        if not self._chooser.takes(name, self._below):
            return False
        self._holds_records = self._holds_records or name.endswith(_RECORDS)
        return True

    def takes(self, name: str) -> bool:
        """Then ask this for each file that may be taken."""
        if not self._holds_records or not name.endswith(_CARD) or self._chooser.cards_are_data:
            return True
        return self._chooser.leave_out(_CARD)


def kind_of(path: str) -> str:
    """How a file is counted: by its suffix, or by its name if it has none."""
    name = path[path.rfind("/") + 1 :]
    dot = name.rfind(".")
    if dot <= 0:
        return name
    if name[dot:].lower() in SUFFIXES:
        dot = max(name.rfind(".", 1, dot), 0) or dot
    return name[dot:].lower()


def found(files: InputFiles) -> str:
    """What there is to read, for people: 1,204 .jsonl.zst, 3 .parquet; a single file by its name."""
    if len(files) == 1:
        return show(files[0].path)
    kinds: Counter[str] = Counter()
    for path in files.paths:
        _count(kind_of(path), kinds)
    return listed(kinds)


def _count(kind: str, kinds: Counter[str]) -> None:
    kinds[kind if kind in kinds or len(kinds) < _MOST_KINDS else _OTHERS] += 1


def listed(kinds: Counter[str]) -> str:
    """The most frequent first: 1,204 .jsonl.zst, 3 .parquet, README.md."""
    most = kinds.most_common(_KINDS_SHOWN)
    shown = [
        f"{count:,} {show(kind)}" if count > 1 or kind.startswith(".") or kind in _GROUPS else show(kind)
        for kind, count in most
    ]
    rest = sum(kinds.values()) - sum(count for _, count in most)
    return ", ".join(shown) + (f", and {rest:,} more" if rest else "")


def _matcher(patterns: Sequence[str]) -> Callable[[str], object] | None:
    """Whether one of the patterns matches the end of a path; drafts/ is short for drafts/*."""
    if not patterns:
        return None
    plain = (pattern.removeprefix("**/") + ("*" if pattern.endswith("/") else "") for pattern in patterns)
    return re.compile("|".join(f"(?s:.*/)?{fnmatch.translate(pattern)}" for pattern in plain)).match
