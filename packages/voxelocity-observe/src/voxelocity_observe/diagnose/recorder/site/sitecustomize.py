"""Every Python with this folder first on its path runs this: it runs the user's own `sitecustomize`, then the recorder
if VOXELOCITY_RECORD asks for it. Failures here are written into the recording; the program continues."""

import os
import sys
from typing import Any


def _run_own() -> None:
    """Imports the `sitecustomize` that would have been found without this folder, and gives it its name."""
    import importlib.machinery
    import importlib.util

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or os.curdir) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is None or spec.loader is None:
        return
    ours = sys.modules["sitecustomize"]
    module = sys.modules["sitecustomize"] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        sys.modules["sitecustomize"] = ours
        raise


def _load_recorder() -> Any:
    """Imports the recorder from its files, under its own name: Voxelocity need not be installed here."""
    import importlib.util

    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    name = "voxelocity_recorder"
    spec = importlib.util.spec_from_file_location(
        name, os.path.join(folder, "__init__.py"), submodule_search_locations=[folder]
    )
    assert spec is not None
    assert spec.loader is not None
    package = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(package)
    return importlib.import_module(name + ".recording")


def _note(text: str) -> None:
    import json

    try:
        folder = json.loads(os.environ["VOXELOCITY_RECORD"])["folder"]
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, "errors.txt"), "a", encoding="utf-8", errors="backslashreplace") as file:
            file.write(text + "\n")
    except Exception:
        # There is nowhere to report it; the program must not be held up.
        return


def _record() -> None:
    if sys.version_info < (3, 9):  # noqa: UP036 - the watched program's Python may be any
        _note("the program runs on Python {}.{}, and recording needs 3.9".format(*sys.version_info[:2]))
        return
    try:
        _load_recorder().begin_from_environment()
    except Exception:
        import traceback

        _note("the recorder could not be started\n" + traceback.format_exc())


try:
    # If the user's own fails, Python reports it as it would have.
    _run_own()
finally:
    if os.environ.get("VOXELOCITY_RECORD"):
        _record()
