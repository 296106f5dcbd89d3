from rich.console import Console

import voxelocity
from voxelocity.training import train
from voxelocity.training.loop import Loop


def test_no_step_of_a_run_needs_the_value_of_a_tensor(monkeypatch, tiny_msd, tiny_plan, tmp_path, reads_of_tensors):
    one_step, found = Loop._one_step, []

    def watched(loop, *arguments):
        with reads_of_tensors() as reads:
            one_step(loop, *arguments)
        found.append(reads.found)

    monkeypatch.setattr(Loop, "_one_step", watched)
    # Batches are made in this thread, so that their operations are seen as well.
    overrides = {**tiny_plan, "data.feed.num_threads": 0}
    train(
        voxelocity.open(tiny_msd), tmp_path / "run", overrides=overrides, device="cpu", console=Console(quiet=True)
    )  # fmt: skip
    assert found == [[]] * 6
