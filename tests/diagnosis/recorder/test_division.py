"""Which stretches are the step, a validation, a saving or the start of an epoch."""

from __future__ import annotations

from voxelocity.diagnosis.recorder.division import divide, keys_of_training
from voxelocity.diagnosis.recorder.stretch import Stretch

TRAIN, VAL = 0, 1


def stretch(
    label: str,
    key: int = -1,
    *,
    batch: bool = False,
    learns: int = 0,
    evaluates: int = 0,
    backwards: int | None = None,
) -> Stretch:
    made = Stretch(label, key, "", 0.0, "other", None)
    made.end = (1.0, None)
    made.has_batch = batch
    made.num_forwards, made.num_evaluating = learns + evaluates, evaluates
    made.num_backwards = learns if backwards is None else backwards
    return made


def fetch(
    key: int, *, learns: int = 0, evaluates: int = 0, batch: bool = True, backwards: int | None = None
) -> Stretch:
    return stretch("fetch", key, batch=batch, learns=learns, evaluates=evaluates, backwards=backwards)


def kinds(stretches: list[Stretch], *, training: set[int] | None = None, has_stepped: bool = True) -> list[str]:
    """The kind of each stretch; "" where it is in no group."""
    groups = divide(stretches, {TRAIN} if training is None else training, has_stepped=has_stepped)
    kind_of = {id(s): group.kind for group in groups for s in group.stretches}
    return [kind_of.get(id(s), "") for s in stretches]


def test_fetch_and_learning_are_one_step() -> None:
    assert kinds([stretch("step"), fetch(TRAIN, learns=1)]) == ["step", "step"]


def test_validation_goes_from_eval_to_train_and_leaves_the_tail_of_the_epoch_to_the_step() -> None:
    between = [
        stretch("step"),
        fetch(TRAIN, batch=False),
        stretch("eval"),
        stretch("iter", VAL),
        stretch("ready"),
        fetch(VAL, evaluates=1),
        fetch(VAL, evaluates=1),
        fetch(VAL, batch=False),
        stretch("train"),
        stretch("iter", TRAIN),
        stretch("ready"),
        fetch(TRAIN, learns=1),
    ]
    assert kinds(between) == [*["step"] * 2, *["validation"] * 6, "step", "epoch start", *["step"] * 2]


def test_validation_without_eval_begins_at_the_other_loader_and_ends_at_the_training_loader() -> None:
    between = [
        stretch("step"),
        stretch("iter", VAL),
        fetch(VAL, evaluates=1),
        fetch(VAL, batch=False),
        stretch("iter", TRAIN),
        stretch("first", TRAIN, batch=True),
        stretch("batch", learns=1),
    ]
    assert kinds(between) == ["step", *["validation"] * 3, *["epoch start"] * 2, "step"]


def test_validation_in_training_mode_with_gradients_is_known_by_its_loader() -> None:
    between = [stretch("step"), fetch(VAL, learns=1, backwards=0), fetch(TRAIN, learns=1)]
    assert kinds(between) == ["step", "validation", "step"]


def test_teacher_that_runs_on_the_same_batch_belongs_to_the_step() -> None:
    assert kinds([stretch("step"), fetch(TRAIN, evaluates=1), stretch("train", learns=1)]) == ["step"] * 3


def test_validation_between_two_batches_without_a_loader_of_its_own_is_one() -> None:
    between = [stretch("step"), stretch("eval", evaluates=3), stretch("train"), fetch(TRAIN, learns=1)]
    assert kinds(between) == ["step", "validation", "step", "step"]


def test_program_without_loaders_is_divided_by_eval_and_train() -> None:
    between = [stretch("step"), stretch("eval", evaluates=3), stretch("train", learns=1)]
    assert kinds(between, training=set()) == ["step", "validation", "step"]


def test_evaluating_without_any_sign_in_a_program_without_loaders_belongs_to_the_step() -> None:
    assert kinds([stretch("step", evaluates=1, learns=1)], training=set()) == ["step"]


def test_saving_within_a_validation_is_apart_and_does_not_end_it() -> None:
    between = [
        stretch("eval"),
        fetch(VAL, evaluates=1),
        stretch("save"),
        stretch("saved"),
        fetch(VAL, evaluates=1),
        stretch("train"),
        fetch(TRAIN, learns=1),
    ]
    groups = divide(between, {TRAIN}, has_stepped=True)
    assert [group.kind for group in groups] == ["validation", "saving", "step"]
    assert groups[0].stretches == [between[0], between[1], between[3], between[4]]


def test_what_is_open_at_the_end_of_a_program_is_validation_and_no_step() -> None:
    tail = [stretch("step"), stretch("eval"), fetch(VAL, evaluates=1)]
    assert kinds(tail, has_stepped=False) == ["", "validation", "validation"]


def test_epoch_start_of_two_loaders_in_one_loop_is_one_group() -> None:
    between = [
        stretch("iter", 0),
        stretch("ready"),
        stretch("iter", 1),
        stretch("ready"),
        stretch("first", 0, batch=True),
        stretch("batch"),
        stretch("first", 1, batch=True),
        stretch("batch", learns=1),
    ]
    groups = divide(between, {0, 1}, has_stepped=True)
    assert [(group.kind, len(group.stretches)) for group in groups] == [("epoch start", 7), ("step", 1)]


def test_validation_before_the_first_step_leaves_out_what_came_before_it() -> None:
    between = [stretch("start"), stretch("forward", evaluates=2), stretch("train"), fetch(TRAIN, learns=1)]
    assert kinds(between, training=set())[:2] == ["step", "validation"]


def test_loaders_of_training_are_those_fetched_before_learning() -> None:
    both = [fetch(0), fetch(2, learns=1), fetch(VAL, evaluates=1), fetch(0, learns=1)]
    assert keys_of_training(both) == {0, 2}


def test_gradients_that_are_accumulated_over_batches_are_one_step() -> None:
    assert kinds([stretch("step"), *[fetch(TRAIN, learns=1)] * 4]) == ["step"] * 5
