import pytest

import closeranks


def test_the_export_list_is_sorted_and_free_of_repetition():
    assert list(closeranks.__all__) == sorted(set(closeranks.__all__))


@pytest.mark.parametrize("name", closeranks.__all__)
def test_an_exported_name_resolves_and_is_what_its_home_holds(name):
    from closeranks import train

    assert getattr(closeranks, name) is getattr(train, name)


def test_all_that_the_worker_library_exports_is_exported_here():
    from closeranks import train

    assert set(train.__all__) <= set(closeranks.__all__)


def test_dir_shows_the_exported_names():
    assert set(closeranks.__all__) <= set(dir(closeranks))


def test_an_unknown_name_is_refused_with_the_names_that_exist():
    with pytest.raises(AttributeError, match="no attribute 'jion'; it exports Batches"):
        _ = closeranks.jion
