"""`voxelocity train --folds`."""

from __future__ import annotations


def test_chosen_folds_are_trained_pooled_and_kept(voxelocity, tiny_msd, tiny_sets, tmp_path):
    command = ("train", tiny_msd, "-o", tmp_path / "cv", "--folds", "0,2", *tiny_sets, "--device", "cpu")
    ended = voxelocity(*command).succeeded()
    assert "over 4 cases" in ended.out
    assert (ended.out.count("  network "), ended.out.count("prepared ")) == (1, 2), "one plan for all"
    assert str(tmp_path / "cv" / "evaluation.html") in ended.out
    assert sorted(path.name for path in (tmp_path / "cv").glob("fold_*")) == ["fold_0", "fold_2"]
    again = voxelocity(*command, "--resume").succeeded()
    assert again.out.count("is finished") == 2
    # No cure that would lose the folds.
    for others in (["--resume", tmp_path / "cv"], [*command[1:4], "--resume"], command[1:4]):
        ended = voxelocity("train", *others)
        assert "it has fold_0, fold_2: repeat the command with --folds, or name one of these folders" in ended.err
    pooled = voxelocity("evaluate", tmp_path / "cv" / "fold_0", tmp_path / "cv" / "fold_2", "-o", tmp_path / "pooled")
    assert pooled.status == 0, pooled.err
    written = [(folder / "evaluation.csv").read_text() for folder in (tmp_path / "cv", tmp_path / "pooled")]
    assert written[0] == written[1]


def test_folds_that_cannot_be_understood_are_named(voxelocity, tiny_msd, tmp_path):
    for options, words in (
        (["--folds", "1-3"], "'1-3' is neither"),
        (["--folds", "all", "--fold", "1"], "give one"),
        (["--folds", "all", "--resume", "--overwrite"], "give one"),
    ):
        ended = voxelocity("train", tiny_msd, "-o", tmp_path / "cv", *options)
        assert ended.status == 2
        assert words in ended.err
        assert not (tmp_path / "cv").exists()


def test_a_fold_that_fails_shows_in_the_status(voxelocity, own_msd, tiny_sets, tmp_path):
    (own_msd / "imagesTr" / "case_1.nii.gz").write_bytes(b"")
    command = ("train", own_msd, "-o", tmp_path / "cv", "--folds", "all", *tiny_sets, "--device", "cpu")
    ended = voxelocity(*command)
    assert ended.status == 1
    assert ended.out.count("failed") >= 3
    assert "case_1.nii.gz: the file is empty" in " ".join(ended.out.split())
