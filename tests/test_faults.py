import pytest

from closeranks import faults
from closeranks.faults import CATALOGUE, Fault, UnknownFaultError, fault_named


def test_every_fault_of_the_module_is_in_the_catalogue_under_its_name():
    named = {value.name: value for value in vars(faults).values() if isinstance(value, Fault)}
    assert dict(CATALOGUE) == named


@pytest.mark.parametrize("fault", CATALOGUE.values(), ids=lambda fault: fault.name)
def test_summary_and_advice_are_sentences(fault):
    for text in (fault.summary, fault.advice):
        assert text[0].isupper()
        assert text.endswith(".")


def test_the_catalogue_cannot_be_changed():
    with pytest.raises(TypeError):
        CATALOGUE["new"] = faults.UNKNOWN
    with pytest.raises(AttributeError):
        faults.KILLED.name = "other"


def test_a_fault_is_found_by_name():
    assert fault_named("process frozen") is faults.FROZEN


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownFaultError, match="nearest is 'process killed'"):
        fault_named("proces kiled")
