"""The two sides of `voxelocity bench monai` must do the same work, that of the examples, or be refused."""

import importlib.util

import pytest
import torch

from voxelocity_lab.bench.peers import monai_scripts as side
from voxelocity_lab.bench.phantom import PhantomSet, make_phantoms
from voxelocity_lab.bench.processes import measure_growth_bytes
from voxelocity_observe.core.environment import CHECKOUT
from voxelocity_observe.core.errors import VoxelocityError

EXAMPLES = CHECKOUT / "examples" / "monai"
PATCH = (16, 16, 16)


def example(name):
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / name / "with_monai.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def settings(transforms):
    """Classes and all plain values of transforms, however deep."""

    def plain(value):
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if hasattr(value, "__dict__") and type(value).__module__.startswith("monai"):
            return [type(value).__name__, plain({k: v for k, v in vars(value).items() if not k.startswith("_")})]
        return repr(value) if isinstance(value, str | int | float | bool | type(None)) else type(value).__name__

    return [plain(transform) for transform in transforms]


@pytest.mark.parametrize(("name", "arguments"), [("spleen", (torch.device("cpu"),)), ("brats", ())])
def test_the_chains_are_those_of_the_examples(name, arguments):
    script = example(name)
    theirs = [*script.preparing(*arguments), *script.augmenting(16)]
    mine = [*side.preparing(name), *side.augmenting(name, PATCH)]
    # The example's EnsureTyped also names the device.
    kept = [index for index, transform in enumerate(theirs) if type(transform).__name__ != "EnsureTyped"]
    assert [type(transform).__name__ for transform in theirs] == [type(transform).__name__ for transform in mine]
    assert settings([theirs[index] for index in kept]) == settings([mine[index] for index in kept])


def test_the_shorter_spleen_chain_lacks_randaffined_alone():
    names = [[type(transform).__name__ for transform in side.augmenting(name, PATCH)]
             for name in ("spleen", "spleen without RandAffined")]  # fmt: skip
    names[0].remove("RandAffined")
    assert names[0] == names[1]


@pytest.fixture(scope="module")
def refs(tmp_path_factory):
    phantoms = PhantomSet(kind="ct", shape=(40, 44, 32), num_cases=2, spacing_mm=(1.5, 1.5, 2.0))
    return make_phantoms(phantoms, tmp_path_factory.mktemp("phantoms"))


@pytest.mark.nightly
def test_a_stream_gives_the_same_batches_each_time_it_is_opened(refs):
    dataset = side.make_cached("monai.data", refs, side.whole("spleen", PATCH))
    stream = side.stream("monai.data", "ThreadDataLoader", dataset, batch_size=2, num_workers=0)
    batches = []
    for _ in range(2):
        with stream() as opened:
            batches.append([next(opened)["image"] for _ in range(2)])
    assert batches[0][0].shape == (8, 1, *PATCH)
    assert torch.equal(batches[0][0], batches[1][0])
    assert torch.equal(batches[0][1], batches[1][1])
    assert not torch.equal(batches[0][0], batches[0][1])
    assert "image 0.0e+00 of its largest value, labels 0.0e+00" in side.check_same(stream, stream, "the same")


def batch(image=1.0, label=0.0, shape=(2, 1, 4, 4, 4)):
    made = {"image": torch.ones(shape), "label": torch.zeros(shape)}
    made["image"][0, 0, 0, 0, 0], made["label"][1, 0, 0, 0, 0] = image, label
    return made


def test_small_differences_of_images_are_reported():
    found = side.check_batches(batch(image=1.0005), batch(), "a pair")
    assert found == "largest difference of an image 5.0e-04 of its largest value, labels 0.0e+00 of voxels"


@pytest.mark.parametrize(
    ("mine", "text"),
    [
        (batch(image=1.5), r"bench monai: a pair: the batches of one seed differ \(largest .* image 5\.0e-01 of"),
        (batch(image=float("nan")), r"a pair: the batches of one seed differ \(largest difference of an image inf"),
        (batch(label=1.0), r"labels 7\.8e-03 of voxels\); speeds of different work cannot be compared\. See which"),
        (batch(shape=(2, 1, 4, 4, 5)), r"image has shape \(2, 1, 4, 4, 5\) by voxelocity\.monai and \(2, 1, 4, 4, 4\)"),
    ],
    ids=["image", "nan", "label", "shape"],
)  # fmt: skip
def test_batches_that_differ_are_refused(mine, text):
    with pytest.raises(VoxelocityError, match=text):
        side.check_batches(mine, batch(), "a pair")


@pytest.mark.nightly
@pytest.mark.parametrize("module", ["voxelocity.monai", "monai.data"])
def test_a_drop_in_cache_takes_memory(module, tmp_path):
    phantoms = PhantomSet(kind="ct", shape=(160, 160, 120), num_cases=1, spacing_mm=(1.5, 1.5, 2.0))
    grown = measure_growth_bytes(
        "drop-in", make_phantoms(phantoms, tmp_path), num_processes=1, options={"module": module}
    )
    # The body alone is kept, about half of the voxels: two bytes each at the least.
    assert grown > 0.5 * 2 * 160 * 160 * 120
