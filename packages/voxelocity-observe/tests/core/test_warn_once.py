import pickle

from voxelocity_observe.core.warn_once import WarnOnce


def test_the_first_text_of_each_cause_is_passed_on():
    said = []
    warn = WarnOnce(said.append)
    for cause, text in (("full", "a"), ("full", "b"), ("damaged", "c"), ("full", "d")):
        warn(cause, text)
    assert said == ["a", "c"]


def test_without_a_listener_texts_are_dropped():
    WarnOnce(None)("full", "a")


def test_a_copy_in_another_process_starts_fresh(capsys):
    warn = WarnOnce(print)
    warn("full", "here")
    pickle.loads(pickle.dumps(warn))("full", "there")
    assert capsys.readouterr().out == "here\nthere\n"
