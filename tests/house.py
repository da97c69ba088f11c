"""Measures the structure of the program: ``python -m tests.house [--paths] [--words] [--json] [--static]``.

    modules                               160   goal: at most 175
    ...

Figures have goals (:data:`GOALS`), which ``tests/test_house.py`` checks. ``--paths`` lists the files of
the three paths with the functions that ran, ``--words`` everything that a figure counts, by file and line. ``--static``
leaves out the paths, which need servers and take half a minute. The exit code is always 0.

A module is a ``.py`` file of the program. An ``__init__`` counts where it holds more than a docstring; as a target of
imports it counts in any case. Lines are those of the file. An import edge is a pair of modules of which one imports the
other, wherever in the file and however often.
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import re
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from tests.house_paths import PATHS, Files, is_frame, measured

ROOT: Final = Path(__file__).parents[1]

GOALS: Final[Mapping[str, int]] = {
    "modules": 175,
    "modules with one importer and fewer than 80 lines": 25,
    "import circles": 0,
    "imports against the order": 0,
    "gerund module names": 0,
    "repeated class names": 0,
    "private names of modules and classes": 0,
    "private names of methods": 0,
    "private words in docstrings": 0,
    "private words in comments": 0,
    "private words in messages": 0,
    "private words in documents": 0,
    f"files: {PATHS['page']}": 16,
    f"files: {PATHS['entry']}": 27,
    f"files: {PATHS['pause']}": 15,
}
"""The maximum of each figure. The tests enforce all of them."""

ORDER: Final = (
    {"__init__", "errors", "clock", "resources", "lifecycle", "text", "limits", "failpoints"},
    {"http"},
    {"config"},
    {"changes"},
    {"telemetry"},
    {"redis"},
    {"store"},
    {"auth"},
    {"source"},
    {"delivery"},
    {"control"},
    {"daemon"},
    {"web"},
    {"app"},
    {"cli"},
    {"__main__"},
)
"""Modules and folders at the top level, lowest first: each may import those before it and those beside it."""

APART: Final[Mapping[str, AbstractSet[str]]] = {
    "sandbox": ORDER[0] | ORDER[1],  # errors and sockets; it shares nothing with the code it checks
    "client": frozenset(),  # a program that uses it loads nothing of the daemon
}
"""Folders outside of the order, with what they may import. Only :data:`IMPORTERS_OF_APART` import them."""

IMPORTERS_OF_APART: Final = {"cli", "__main__"}

FIELD_GERUNDS: Final = {"paging", "signing", "tracing"}
"""Established nouns of the field."""

WORDS: Final = (
    "whoever",
    "nobody",
    "somebody",
    "told",
    "amiss",
    "anew",
    "so many",
    "at once",
    "ours",
)
"""The private dialect, as far as single words show it; `it` without a noun has to be found by reading."""

PLAIN: Final[Mapping[str, str]] = {
    r"--anew\b": "the option's name, which is the outside",
    r"anew=true": "the same over HTTP",
    r"""(?<=["'`])anew(?=["'`])|^anew$""": "the command's word in Redis and JSON, which older processes read",
    r"\?anew=|^anew:": "the parameter's name over HTTP",
    r"^told$": "the field's name in Redis, which older processes read",
    r"\b(\d+|two|three|many|more|all|several)(\s+of\s+\w+|\s+\w+)?\s+at\s+once\b": "English for `at the same time`",
}
"""Where a word is plain English or part of the outside: pattern and reason."""

_FIELD_NAMES: Final = re.compile("dead_?letter|high_?water_?mark", re.IGNORECASE)  # the field's words

METHODS: Final = {"take", "tell", "look", "begin", "end", "note", "hear"}
"""Verbs that do not say what happens to which thing."""

NAMES: Final = frozenset(
    """
    announcement announcing anew asking beginning book bookmark breaker draft filing finding given handler helper kept
    lane learnt letter lot manager mark mending nonce noting obeying order ours overhearing pair parked place processor
    provider remembered remembering retaining share sharing standing subscriber target told topic upstream util wanting
    withholding
    """.split()  # noqa: SIM905 -- read as one text
)
"""Words that may not occur in names of modules and classes: the private part of the glossary's right-hand column."""


@dataclass(frozen=True, slots=True)
class Found:
    """A fault: its place, and what it is."""

    place: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.what}"


@dataclass(frozen=True, slots=True)
class Module:
    """A file of the program.

    Attributes:
        name: dotted, relative to the program's directory; that of a package ends with ``__init__``.
        path: relative to the repository.
        nodes: the nodes of its syntax tree, the module first.
    """

    name: str
    path: str
    text: str
    nodes: Sequence[ast.AST]

    @property
    def lines(self) -> int:
        return self.text.count("\n")

    @property
    def top(self) -> str:
        """Its top-level folder, or its own name at the top level."""
        return self.name.partition(".")[0]

    @property
    def is_bare_package(self) -> bool:
        """Whether it is an ``__init__`` with at most a docstring."""
        is_bare = all(isinstance(node, ast.Module | ast.Expr | ast.Constant) for node in self.nodes)
        return is_bare and self.name.rpartition(".")[2] == "__init__"


@dataclass(frozen=True)
class House:
    """The program's files, and the figures computed from them."""

    root: Path = ROOT
    package: str = "poller"
    modules: Mapping[str, Module] = field(init=False)

    def __post_init__(self) -> None:
        found = sorted((self.root / self.package).rglob("*.py"))
        object.__setattr__(self, "modules", {module.name: module for module in map(self._module, found)})

    def _module(self, file: Path) -> Module:
        text = file.read_text("utf-8")
        name = ".".join(file.relative_to(self.root / self.package).with_suffix("").parts)
        return Module(name, file.relative_to(self.root).as_posix(), text, tuple(ast.walk(ast.parse(text))))

    @property
    def has_layout(self) -> bool:
        """Whether the folders of :data:`ORDER` exist."""
        return (self.root / self.package / "daemon").is_dir()

    @cached_property
    def counted(self) -> list[Module]:
        """All modules but the ``__init__`` files that hold a docstring only."""
        return [module for module in self.modules.values() if not module.is_bare_package]

    @cached_property
    def imports(self) -> Mapping[str, set[str]]:
        """The modules that each module imports."""
        return {name: set(self._imported(module)) - {name} for name, module in self.modules.items()}

    def _imported(self, module: Module) -> Iterator[str]:
        for node in module.nodes:
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                origin = node.module or ""
                names = [f"{origin}.{alias.name}" for alias in node.names]
            else:
                continue
            yield from filter(None, map(self._resolved, names))

    def _resolved(self, name: str) -> str | None:
        """The program's module that ``name`` refers to; None if it is not the program's."""
        top, _, rest = name.partition(".")
        if top != self.package:
            return None
        candidates = (rest, f"{rest}.__init__", rest.rpartition(".")[0], f"{rest.rpartition('.')[0]}.__init__")
        return next((one.lstrip(".") for one in candidates if one.lstrip(".") in self.modules), None)

    @cached_property
    def importers(self) -> Mapping[str, set[str]]:
        """The modules that import each module."""
        found: defaultdict[str, set[str]] = defaultdict(set)
        for name, imported in self.imports.items():
            for one in imported:
                found[one].add(name)
        return found

    @cached_property
    def edges(self) -> int:
        return sum(map(len, self.imports.values()))

    @cached_property
    def single(self) -> list[Module]:
        """Modules with one importer, without packages."""
        return [one for one in self.counted if len(self.importers[one.name]) == 1 and not one.name.endswith("__init__")]

    @cached_property
    def small_single(self) -> list[Module]:
        return [one for one in self.single if one.lines < 80]

    @cached_property
    def circles(self) -> list[list[str]]:
        """Groups of modules that import each other, directly or over several steps."""
        reached = {name: self._reached(name) for name in self.modules}
        groups = {frozenset(other for other in reached[name] if name in reached[other]) for name in reached}
        return sorted(sorted(group) for group in groups if group)

    def _reached(self, name: str) -> set[str]:
        seen: set[str] = set()
        ahead = list(self.imports[name])
        while ahead:
            one = ahead.pop()
            if one not in seen:
                seen.add(one)
                ahead += self.imports[one]
        return seen

    @cached_property
    def against_order(self) -> list[Found]:
        """Imports against :data:`ORDER`, and modules that are not in it."""
        level = {name: number for number, names in enumerate(ORDER) for name in names}
        found = [
            Found(module.path, "has no place in the order")
            for module in self.modules.values()
            if module.top not in level and module.top not in APART
        ]
        for name, imported in self.imports.items():
            for other in sorted(imported):
                above, below = self.modules[name].top, self.modules[other].top
                if above == below:
                    continue
                if above in APART:
                    allowed = below in APART[above]
                elif below in APART:
                    allowed = above in IMPORTERS_OF_APART
                else:
                    allowed = level.get(above, len(ORDER)) >= level.get(below, 0)
                if not allowed:
                    found.append(Found(self.modules[name].path, f"imports {other}"))
        return found

    @cached_property
    def gerunds(self) -> list[str]:
        names = {module.path: module.name.rpartition(".")[2].split("_") for module in self.counted}
        return [
            path
            for path, words in names.items()
            if any(re.fullmatch(r"[a-z]{2,}ing", word) and word not in FIELD_GERUNDS for word in words)
        ]

    @cached_property
    def classes(self) -> Mapping[str, list[str]]:
        """Where each class name is defined."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for module in self.modules.values():
            for node in module.nodes:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(f"{module.path}:{node.lineno}")
        return found

    @cached_property
    def repeated_classes(self) -> list[Found]:
        return [Found(", ".join(places), name) for name, places in sorted(self.classes.items()) if len(places) > 1]

    @cached_property
    def private_names(self) -> list[Found]:
        """Modules and classes whose names contain words of :data:`NAMES`."""
        named = [(module.path, module.name.rpartition(".")[2]) for module in self.counted]
        named += [(places[0], name) for name, places in self.classes.items()]
        return [Found(place, name) for place, name in named if NAMES.intersection(_words(_FIELD_NAMES.sub("", name)))]

    @cached_property
    def private_methods(self) -> list[Found]:
        return [
            Found(f"{module.path}:{method.lineno}", f"{node.name}.{method.name}")
            for module in self.modules.values()
            for node in module.nodes
            if isinstance(node, ast.ClassDef)
            for method in node.body
            if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and method.name.strip("_") in METHODS
        ]

    @cached_property
    def private_words(self) -> Mapping[str, list[Found]]:
        """The words of the dialect in docstrings, comments, messages and documents."""
        texts: dict[str, list[tuple[str, int, str]]] = {kind: [] for kind in ("docstrings", "comments", "messages")}
        for module in self.modules.values():
            for kind, line, text in _texts(module):
                texts[kind].append((module.path, line, text))
        for file in sorted((self.root / self.package).rglob("*.lua")):
            texts["comments"].append((file.relative_to(self.root).as_posix(), 1, file.read_text("utf-8")))
        texts["documents"] = [
            (file.relative_to(self.root).as_posix(), 1, file.read_text("utf-8")) for file in self._documents()
        ]
        return {kind: [found for one in written for found in _dialect(*one)] for kind, written in texts.items()}

    def _documents(self) -> Iterator[Path]:
        yield from sorted(self.root.glob("*.md"))
        for folder in ("deploy", self.package, "tests"):
            yield from sorted((self.root / folder).rglob("*.md"))
        yield from sorted((self.root / "deploy").rglob("*.toml"))

    def figures(self) -> dict[str, int | None]:
        """All figures except the paths; None if one does not apply to this layout."""
        return {
            "modules": len(self.counted),
            "packages with a docstring only, not counted": len(self.modules) - len(self.counted),
            "lines": sum(module.lines for module in self.modules.values()),
            "modules with one importer": len(self.single),
            "modules with one importer and fewer than 80 lines": len(self.small_single),
            "import edges": self.edges,
            "import circles": len(self.circles),
            "imports against the order": len(self.against_order) if self.has_layout else None,
            "gerund module names": len(self.gerunds),
            "repeated class names": len(self.repeated_classes),
            "private names of modules and classes": len(self.private_names),
            "private names of methods": len(self.private_methods),
            **{f"private words in {kind}": len(found) for kind, found in self.private_words.items()},
        }

    def words(self) -> dict[str, int]:
        """How often each word of the dialect occurs."""
        counted = Counter(found.what.partition(" | ")[0] for kind in self.private_words.values() for found in kind)
        return {word: counted[word] for word in WORDS}

    def faults(self) -> Iterator[tuple[str, Iterable[object]]]:
        """The faults that the figures count, one list each."""
        yield "modules with one importer and fewer than 80 lines", (one.path for one in self.small_single)
        yield "import circles", (" ".join(circle) for circle in self.circles)
        yield "imports against the order", self.against_order if self.has_layout else ()
        yield "gerund module names", self.gerunds
        yield "repeated class names", self.repeated_classes
        yield "private names of modules and classes", self.private_names
        yield "private names of methods", self.private_methods
        for kind, found in self.private_words.items():
            yield f"private words in {kind}", found


def _words(name: str) -> list[str]:
    """The words of a name, in lower case and without a plural s."""
    parts = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+", name)
    return [part.lower() if part.endswith("ss") else part.lower().removesuffix("s") for part in parts]


def _texts(module: Module) -> Iterator[tuple[str, int, str]]:
    """Docstrings, other literals and comments: kind, line, text. Consecutive comments are one text."""
    statements = {node.value for node in module.nodes if isinstance(node, ast.Expr)}
    for node in module.nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield "docstrings" if node in statements else "messages", node.lineno, node.value
    comment, first, last = "", 0, -1
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield "comments", first, comment
                comment, first = "", token.start[0]
            comment, last = f"{comment}{token.string.lstrip('#')}\n", token.start[0]
    yield "comments", first, comment


_WORDS: Final = re.compile("|".join(rf"\b{word}\b".replace(" ", r"\s+") for word in WORDS), re.IGNORECASE)
_PLAIN: Final = re.compile("|".join(f"(?:{pattern})" for pattern in PLAIN))


def _dialect(path: str, line: int, text: str) -> Iterator[Found]:
    plain = [found.span() for found in _PLAIN.finditer(text)]
    for found in _WORDS.finditer(text):
        if not any(start < found.end() and found.start() < end for start, end in plain):
            context = " ".join(text[max(0, found.start() - 40) : found.end() + 40].split())
            number = line + text.count("\n", 0, found.start())
            yield Found(f"{path}:{number}", f"{' '.join(found[0].lower().split())} | {context}")


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--paths", action="store_true", help="list the files of the paths")
    parser.add_argument("--words", action="store_true", help="list what the figures count")
    parser.add_argument("--static", action="store_true", help="leave the paths out")
    parser.add_argument("--json", action="store_true", help="for machines")
    asked = parser.parse_args()
    house = House()
    paths: Mapping[str, Files] = {} if asked.static else measured()
    figures = house.figures() | {f"files: {PATHS[path]}": length(files) for path, files in paths.items()}
    faults = {name: list(map(str, found)) for name, found in house.faults()}
    ways = {PATHS[path]: list(_shown(files)) for path, files in paths.items()}
    if asked.json:
        shown = {"figures": figures, "goals": GOALS, "words": house.words(), "faults": faults, "paths": ways}
        sys.stdout.write(json.dumps(shown, indent=1) + "\n")
        return
    for name, figure in figures.items():
        goal = f"goal: {GOALS[name]}" if name in GOALS else ""
        sys.stdout.write(f"{name:52} {'-' if figure is None else figure:>6}   {goal}".rstrip() + "\n")
    sys.stdout.write("words: " + ", ".join(f"{word} {count}" for word, count in house.words().items()) + "\n")
    for name, found in ((faults if asked.words else {}) | (ways if asked.paths else {})).items():
        sys.stdout.write(f"\n{name}\n" + "".join(f"  {one}\n" for one in found))


def length(files: Files) -> int:
    """How many files of a path count."""
    return sum(not is_frame(file) for file in files)


def _shown(files: Files) -> Iterator[str]:
    for file, ran in sorted(files.items(), key=lambda item: (is_frame(item[0]), item[0])):
        yield f"{'(frame) ' if is_frame(file) else ''}{file}: {', '.join(sorted(ran))}"


if __name__ == "__main__":
    main()
