from voxelocity.observe.kernel_files import file_text


def test_a_file_is_text_without_blanks_around_it_and_nothing_where_it_cannot_be_read(tmp_path):
    (tmp_path / "cpu.max").write_bytes(b" 150000 100000\n\xff\n")
    assert file_text(tmp_path / "cpu.max") == "150000 100000\n\N{REPLACEMENT CHARACTER}"
    assert file_text(tmp_path / "none") == ""
    assert file_text(tmp_path) == ""
