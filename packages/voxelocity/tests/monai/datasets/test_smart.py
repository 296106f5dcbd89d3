import threading
import time

import pytest
from monai.handlers import SmartCacheHandler
from monai.transforms import Compose, Lambda

from shared.limits import HANGS_S
from voxelocity_observe.core.errors import ConfigError, ItemError


def epochs(dataset, num):
    found = ["".join(map(str, dataset))]
    for _ in range(num - 1):
        dataset.update_cache()
        found.append("".join(map(str, dataset)))
    return found


def smart(sets, data, transform=None, **arguments):
    return sets.SmartCacheDataset(data, transform, progress=False, **{"shuffle": False, **arguments})


def test_epochs_hold_the_documented_items(sets):
    dataset = smart(sets, list("12345"), replace_rate=0.25, cache_num=4)
    dataset.start()
    assert epochs(dataset, 7) == ["1234", "2345", "3451", "4512", "5123", "1234", "2345"]
    dataset.shutdown()
    assert len(dataset) == 4


def test_several_items_an_epoch_come_in_order_from_several_threads(sets):
    dataset = smart(sets, list("0123456"), replace_rate=0.5, cache_num=4, num_replace_workers=3)
    assert epochs(dataset, 4) == ["0123", "2345", "4560", "6012"]
    dataset.shutdown()


@pytest.mark.timeout(60)
def test_an_item_that_cannot_be_prepared_is_an_error_of_update_cache_that_names_it(sets, fails_on):
    broken = fails_on("5")
    dataset = smart(sets, list("12345"), Compose([broken]), replace_rate=0.25, cache_num=4)
    dataset.start()
    with pytest.raises(ItemError) as caught:
        dataset.update_cache()
    assert "monai.SmartCacheDataset: item 4 ('5') could not be prepared for the next epoch" in str(caught.value)
    assert "repair it and call update_cache() again, or leave it out" in str(caught.value)
    assert "scan 5 is broken" in str(caught.value.__cause__.__cause__)
    assert "".join(dataset) == "1234"
    broken.bad = None
    assert epochs(dataset, 2) == ["1234", "2345"]
    dataset.shutdown()


@pytest.mark.timeout(60)
def test_shutdown_ends_after_an_item_that_cannot_be_prepared(sets, fails_on):
    dataset = smart(sets, list("12345"), Compose([fails_on("5")]), replace_rate=0.25, cache_num=4)
    dataset.start()
    dataset.shutdown()
    assert not dataset.is_started()


def test_the_next_epochs_items_are_prepared_while_this_one_trains(sets):
    made = threading.Event()

    def note(item):
        if item == "5":
            made.set()
        return item

    dataset = smart(sets, list("12345"), Compose([Lambda(note)]), replace_rate=0.25, cache_num=4)
    dataset.start()
    assert made.wait(HANGS_S)
    dataset.shutdown()


def test_waiting_for_an_item_takes_no_processor_time(sets):
    go = threading.Event()
    dataset = smart(
        sets,
        list("12345"),
        Compose([Lambda(lambda x: x if x != "5" or go.wait(HANGS_S) else None)]),
        replace_rate=0.25,
        cache_num=4,
    )
    dataset.start()
    threading.Timer(0.5, go.set).start()
    before = time.thread_time()
    dataset.update_cache()
    # MONAI's loop asks a hundred times a second; here the thread sleeps until the item is there.
    assert time.thread_time() - before < 0.1
    dataset.shutdown()


def test_after_a_shutdown_the_window_continues_where_the_cache_stands(sets):
    dataset = smart(sets, list("12345"), replace_rate=0.25, cache_num=4)
    assert epochs(dataset, 3)[-1] == "3451"
    dataset.shutdown()
    assert epochs(dataset, 3) == ["3451", "4512", "5123"]
    dataset.shutdown()


def test_other_data_of_another_length_are_gone_through_whole(sets):
    dataset = smart(sets, list("12345"), replace_rate=0.5, cache_num=2)
    dataset.set_data(list("abcdefg"))
    assert epochs(dataset, 7) == ["ab", "bc", "cd", "de", "ef", "fg", "ga"]
    dataset.shutdown()
    dataset.set_data(list("xyz"))
    assert epochs(dataset, 4) == ["xy", "yz", "zx", "xy"]
    dataset.shutdown()


def test_set_data_before_shutdown_says_so_and_shuts_down(sets):
    dataset = smart(sets, list("12345"), replace_rate=0.25, cache_num=4)
    dataset.start()
    with pytest.warns(UserWarning, match="set_data before shutdown"):
        dataset.set_data(list("abcde"))
    assert not dataset.is_started()


def test_shuffling_is_monais_and_leaves_the_callers_list_alone(sets):
    import monai.data

    data = list("123456789")
    ours = smart(sets, data, cache_num=5, shuffle=True, seed=123)
    theirs = monai.data.SmartCacheDataset(data, cache_num=5, shuffle=True, seed=123, progress=False)
    assert list(ours) == list(theirs)
    assert data == list("123456789")


def test_a_cache_that_holds_all_items_replaces_nothing_and_says_so(sets):
    with pytest.warns(UserWarning, match="holds all 3 items"):
        dataset = smart(sets, list("123"))
    assert epochs(dataset, 3) == ["123", "123", "123"]
    dataset.shutdown()


def test_refused_arguments_are_reported_with_the_cure(sets):
    with pytest.raises(ConfigError, match=r"replace_rate = 0 would never replace an item; give a number above 0"):
        smart(sets, list("123"), replace_rate=0)
    with pytest.raises(ConfigError, match=r"runtime_cache = 'threads' is not possible: .*leave it False, or use"):
        smart(sets, list("123"), runtime_cache="threads")
    with pytest.raises(ConfigError, match=r"manage_replacement is not used here; call start\(\)"):
        smart(sets, list("12345"), cache_num=4).manage_replacement()


def test_monais_handler_takes_it(sets):
    dataset = smart(sets, list("12345"), replace_rate=0.25, cache_num=4)
    handler = SmartCacheHandler(dataset)
    handler.started(None)
    handler.epoch_completed(None)
    assert "".join(dataset) == "2345"
    handler.completed(None)
    assert not dataset.is_started()
