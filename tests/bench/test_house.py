"""The shape of the code base, as far as it can be counted."""

from house import ROOT, figures


def test_no_modules_import_each_other_and_no_name_means_two_classes():
    counted = figures(ROOT)
    assert counted["modules in import cycles"] == 0
    assert counted["public names of several classes"] == 0
