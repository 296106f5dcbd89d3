from voxelocity_observe.core.kernel_files import file_number, file_text


def test_a_file_is_text_without_blanks_around_it_and_nothing_where_it_cannot_be_read(tmp_path):
    (tmp_path / "cpu.max").write_bytes(b" 150000 100000\n\xff\n")
    assert file_text(tmp_path / "cpu.max") == "150000 100000\n\N{REPLACEMENT CHARACTER}"
    assert file_text(tmp_path / "none") == ""
    assert file_text(tmp_path) == ""


def test_a_limit_is_the_number_in_the_first_file_that_exists(tmp_path):
    (tmp_path / "memory.max").write_text("max\n")
    (tmp_path / "pids.max").write_text("512\n")
    assert file_number(tmp_path / "none", tmp_path / "pids.max") == 512
    assert file_number(tmp_path / "memory.max", tmp_path / "pids.max") is None
    assert file_number(tmp_path / "none") is None
