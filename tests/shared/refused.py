"""What must hold for each command that is refused."""


def assert_refused(ended, *texts, most_lines=1):
    """The command ended with status 2, predicted nothing, and said why in so few lines, which hold the texts."""
    assert ended.status == 2, ended
    assert 1 <= len(ended.err.splitlines()) <= most_lines, ended.err
    assert ended.err.startswith("voxelocity: "), ended.err
    assert "->" not in ended.out, "something was predicted"
    missing = [text for text in texts if text not in ended.err]
    assert not missing, f"{missing} not in: {ended.err}"
