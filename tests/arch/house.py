"""The house in numbers: files, code lines, lengths of functions, and names used twice, of one tree or of two.

    python -m tests.arch.house [FOLDER [FOLDER]]

Without a folder it measures `src/thinwire`; with two it prints both columns, before and after. A code line holds code:
docstrings, comments and blank lines do not count, and neither does the head of a function for its length. Kernels are
the files of `ops/cpu` and `ops/cuda` and whatever imports numba or triton: their functions are as long as their loops.
"""

from __future__ import annotations

import ast
import io
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "thinwire"
KERNEL_FOLDERS = ("ops/cpu", "ops/cuda")
COMPILERS = ("numba", "triton")
LONG_FUNCTION, LONG_FILE = 40, 400
NO_CODE = (
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
)
SCOPES = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True)
class Function:
    """A function or method, with the code lines of its body."""

    name: str
    line: int
    length: int


@dataclass(frozen=True)
class File:
    """One module of the tree."""

    path: str
    """Within the tree."""
    length: int
    functions: tuple[Function, ...]
    classes: tuple[str, ...]
    compiled: bool

    @property
    def stem(self) -> str:
        return Path(self.path).stem

    @property
    def package(self) -> str:
        return self.path.partition("/")[0] if "/" in self.path else "(root)"

    @property
    def kernel(self) -> bool:
        return self.compiled or any(self.path.startswith(f"{folder}/") for folder in KERNEL_FOLDERS)

    @staticmethod
    def read(path: Path, tree: Path) -> File:
        source = path.read_text(encoding="utf-8")
        syntax = ast.parse(source)
        nodes = list(ast.walk(syntax))
        lines = _code_lines(source) - set(_docstring_lines(nodes))
        return File(
            path.relative_to(tree).as_posix(),
            len(lines),
            tuple(_function(node, lines) for node in nodes if isinstance(node, ast.FunctionDef)),
            tuple(node.name for node in nodes if isinstance(node, ast.ClassDef)),
            any(name.partition(".")[0] in COMPILERS for name in _imported(nodes)),
        )


def _code_lines(source: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {line for t in tokens if t.type not in NO_CODE for line in range(t.start[0], t.end[0] + 1)}


def _docstring_lines(nodes: Iterable[ast.AST]) -> Iterator[int]:
    """Of docstrings, and of the texts below fields that document them."""
    for node in nodes:
        for statement in node.body if isinstance(node, SCOPES) else ():
            match statement:
                case ast.Expr(value=ast.Constant(value=str())):
                    yield from range(statement.lineno, (statement.end_lineno or 0) + 1)


def _function(node: ast.FunctionDef, lines: set[int]) -> Function:
    body = range(node.body[0].lineno, (node.end_lineno or 0) + 1)
    return Function(node.name, node.lineno, len(lines.intersection(body)))


def _imported(nodes: Iterable[ast.AST]) -> Iterator[str]:
    for node in nodes:
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=str(module), level=0):
                yield module


@dataclass(frozen=True)
class House:
    """All modules of a tree."""

    files: tuple[File, ...]

    @staticmethod
    def read(tree: Path) -> House:
        return House(tuple(File.read(path, tree) for path in sorted(tree.rglob("*.py"))))

    @property
    def length(self) -> int:
        return sum(file.length for file in self.files)

    def lengths(self, *, kernels: bool | None = None) -> list[int]:
        """Of all functions, or of those inside or outside kernels, ascending."""
        wanted = (file for file in self.files if kernels in (None, file.kernel))
        return sorted(function.length for file in wanted for function in file.functions)

    @property
    def long_files(self) -> dict[str, int]:
        return {file.path: file.length for file in self.files if file.length > LONG_FILE}

    @property
    def long_functions(self) -> dict[str, int]:
        """By `path:name`."""
        return {
            f"{f.path}:{each.name}": each.length
            for f in self.files
            for each in f.functions
            if each.length > LONG_FUNCTION
        }

    @cached_property
    def stems_twice(self) -> dict[str, list[str]]:
        """Modules of one name; every package has an `__init__`."""
        return _several((file.stem, file.path) for file in self.files if file.stem != "__init__")

    @cached_property
    def classes_twice(self) -> dict[str, list[str]]:
        """Public classes of one name."""
        return _several((name, f.path) for f in self.files for name in f.classes if not name.startswith("_"))

    @property
    def packages(self) -> dict[str, int]:
        """Files of each."""
        return dict(Counter(file.package for file in self.files))


def _several(pairs: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    places: dict[str, list[str]] = defaultdict(list)
    for name, place in pairs:
        places[name].append(place)
    return {name: found for name, found in sorted(places.items()) if len(found) > 1}


def median(lengths: Sequence[int]) -> float:
    """Zero of none."""
    return statistics.median(lengths) if lengths else 0


def ninetieth(lengths: Sequence[int]) -> int:
    """Nine functions of ten are no longer."""
    return lengths[int(0.9 * len(lengths))] if lengths else 0


def figures(house: House) -> dict[str, str]:
    """What is compared, by name."""
    found = {"files": str(len(house.files)), "code lines": f"{house.length:,}"}
    for name, kernels in (("functions", None), ("outside kernels", False), ("in kernels", True)):
        lengths = house.lengths(kernels=kernels)
        spread = f"{median(lengths):g} / {ninetieth(lengths)} / {max(lengths, default=0)}"
        found |= {name: str(len(lengths)), f"  {name}: median / p90 / max": spread}
    return {
        **found,
        f"functions over {LONG_FUNCTION} lines": str(len(house.long_functions)),
        f"files over {LONG_FILE} lines": str(len(house.long_files)),
        "module names used twice": str(len(house.stems_twice)),
        "class names used twice": str(len(house.classes_twice)),
        **{f"files of {name}": str(count) for name, count in sorted(house.packages.items())},
    }


def details(house: House) -> Iterator[str]:
    """What is long, and which names are used twice."""
    for what, found in (("function", house.long_functions), ("file", house.long_files)):
        for place, length in sorted(found.items(), key=lambda item: -item[1]):
            yield f"{what} of {length} lines: {place}"
    for what, twice in (("module", house.stems_twice), ("class", house.classes_twice)):
        for name, places in twice.items():
            yield f"{what} {name}: {', '.join(places)}"


def table(columns: Sequence[dict[str, str]]) -> Iterator[str]:
    """One line a figure, one column a tree."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    for name in names:
        yield f"{name:40}" + "".join(f"{column.get(name, '0'):>18}" for column in columns)


def main(folders: Sequence[str]) -> None:
    houses = [House.read(Path(folder)) for folder in folders or [str(SOURCE)]]
    print("\n".join(table([figures(house) for house in houses])))
    print()
    print("\n".join(details(houses[-1])))


if __name__ == "__main__":
    main(sys.argv[1:])
