"""Size and shape of the code base, now and at an earlier commit, as a table.

    python benchmarks/house.py [--before COMMIT]

Counts only what a script can count: lines, files, small modules, modules with one user, import cycles (imports inside
functions included), templates of pages, and classes that share a name.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from harness import ROOT, source_folders

_SMALL = 40
MOST_PARAMETERS = 8


def figures(root: Path) -> dict[str, int]:
    """What is counted, by name, of the checkout at `root`."""
    sources = tuple(source_folders(root))
    files, parsed = parse_sources(sources)
    imports = imported_modules(sources)
    users: dict[str, set[str]] = defaultdict(set)
    for name, targets in imports.items():
        if files[name].name != "__init__.py":
            for target in targets:
                users[target].add(name)
    modules = [name for name, path in files.items() if path.name not in ("__init__.py", "__main__.py")]
    lines = {name: _lines(path) for name, path in files.items()}
    nodes = [node for found in parsed.values() for node in found]
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    bodies = (found[0].body for found in parsed.values() if isinstance(found[0], ast.Module))
    defined = [node for body in bodies for node in body if isinstance(node, ast.ClassDef)]
    classes = Counter(n.name for n in defined if not _extends_its_namesake(n))
    return {
        "lines of src": sum(lines.values()),
        **{
            f"lines of {package}": sum(count for name, count in lines.items() if name.partition(".")[0] == package)
            for package in ("voxelocity", "voxelocity_observe", "voxelocity_lab")
        },
        "files of src": len(files),
        **{f"lines of {part}": sum(map(_lines, _scripts_below(root, part))) for part in ("tests", "benchmarks")},
        f"modules below {_SMALL} lines": sum(lines[name] < _SMALL for name in modules),
        "modules with one user": sum(len(users[name]) == 1 for name in modules),
        "files above 400 lines": sum(count > 400 for count in lines.values()),
        "functions above 60 lines": sum((n.end_lineno or 0) - n.lineno >= 60 for n in functions),
        f"functions above {MOST_PARAMETERS} parameters": sum(num_parameters(n) > MOST_PARAMETERS for n in functions),
        "loop variables without a noun": sum(map(_without_noun, nodes)),
        "modules in import cycles": _in_cycles(imports),
        "public names of several classes": sum(n > 1 for name, n in classes.items() if not name.startswith("_")),
        "templates of pages": sum(len(list(source.rglob("*.html.j2"))) for source in sources),
    }


def imported_modules(sources: tuple[Path, ...]) -> dict[str, set[str]]:
    """The modules below these folders, by name, each with those of them that it imports."""
    files, parsed = parse_sources(sources)
    return {name: set(_imported(name, nodes, files)) - {name} for name, nodes in parsed.items()}


@cache
def parse_sources(sources: tuple[Path, ...]) -> tuple[dict[str, Path], dict[str, list[ast.AST]]]:
    """The modules below these folders by name: their files, and all nodes of each, the module itself first."""
    files = {_module(path, source): path for source in sources for path in source.rglob("*.py")}
    return files, {name: list(ast.walk(ast.parse(path.read_text()))) for name, path in files.items()}


def _extends_its_namesake(node: ast.ClassDef) -> bool:
    """Whether the class is another form of the one whose name it has: `class Feed(other.Feed)`."""
    return any(ast.unparse(base).partition("[")[0].endswith(f".{node.name}") for base in node.bases)


def _module(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imported(name: str, nodes: list[ast.AST], files: Mapping[str, Path]) -> Iterator[str]:
    """Modules of ours that a module imports, anywhere in it but for types alone."""
    only_types = {
        id(inner)
        for node in nodes
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    package = name.split(".") if files[name].name == "__init__.py" else name.split(".")[:-1]
    for node in nodes:
        if id(node) in only_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                if inner in files or base in files:
                    yield inner if inner in files else base


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many values a function takes, without `self` and `cls`."""
    arguments = function.args
    names = [argument.arg for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def _without_noun(node: ast.AST) -> bool:
    """Whether the node is a loop over `one` or `each`."""
    if not isinstance(node, ast.For | ast.comprehension):
        return False
    return isinstance(node.target, ast.Name) and node.target.id in ("one", "each")


def _in_cycles(imports: Mapping[str, set[str]]) -> int:
    """The number of modules that import themselves through others."""
    count = 0
    for start in imports:
        seen, left = set[str](), list(imports[start])
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += imports[name]
        count += start in seen
    return count


def _scripts_below(root: Path, part: str) -> list[Path]:
    """The Python files of the folders of this name, in the root and in each distribution."""
    return [path for folder in (root / part, *root.glob(f"packages/*/{part}")) for path in folder.rglob("*.py")]


def _lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def _figures_at(commit: str) -> dict[str, int]:
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        tar.extractall(folder, filter="data")
        return figures(Path(folder))


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Size and shape of the code base.")
    parser.add_argument("--before", help="commit to compare with")
    options = parser.parse_args()
    now = figures(ROOT)
    before = _figures_at(options.before) if options.before else {}
    print("| | before | now |\n|---|---|---|")
    for name, count in now.items():
        print(f"| {name} | {before.get(name, ''):,} | {count:,} |" if before else f"| {name} | | {count:,} |")


if __name__ == "__main__":
    main()
