import subprocess
import sys

from voxelocity_observe.core.environment import python_path

SOURCE = python_path()


def test_importing_the_package_loads_neither_torch_nor_the_drawing_libraries():
    code = "import sys, voxelocity.report; print(*sorted({n.partition('.')[0] for n in sys.modules}))"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": str(SOURCE)}
    )
    loaded = set(answer.stdout.split())
    assert "voxelocity" in loaded
    assert not loaded & {"torch", "monai", "matplotlib", "jinja2"}
