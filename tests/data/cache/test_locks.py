import threading

from voxelocity.data.cache import PassingLocks


def test_one_thread_at_a_time_holds_a_key_and_other_keys_do_not_wait(tmp_path):
    locks, order = PassingLocks(tmp_path), []

    def work(number):
        with locks.hold("a"):
            order.append(number)
            order.append(number)

    with locks.hold("a"):
        threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        with locks.hold("b"):
            assert order == []
            assert {path.name for path in tmp_path.iterdir()} == {".a.lock", ".b.lock"}
    for thread in threads:
        thread.join()
    assert order[::2] == order[1::2]
    assert sorted(order[::2]) == [0, 1, 2]


def test_nothing_is_left_in_the_folder_when_nobody_holds_a_lock(tmp_path):
    with PassingLocks(tmp_path).hold("a"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_gone_is_done_without(tmp_path):
    with PassingLocks(tmp_path / "gone").hold("a"):
        pass
    assert not (tmp_path / "gone" / ".a.lock").exists()
