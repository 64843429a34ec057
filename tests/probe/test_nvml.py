"""The library that looks at accelerators, played by values that devices gave."""

from __future__ import annotations

from types import SimpleNamespace
from typing import ClassVar

import pytest

from closeranks.probe import nvml
from closeranks.probe.outcome import Absent, Failed, Passed, Unknown


class NVMLError(Exception):
    def __init__(self, value):
        super().__init__(f"error {value}")
        self.value = value


def field(value, kind=1, returned=0):
    return SimpleNamespace(nvmlReturn=returned, valueType=kind, value=SimpleNamespace(uiVal=value, ullVal=value))


class Library:
    """Two devices that answer what a healthy H100 answers, but for ``wrong``."""

    NVMLError = NVMLError
    NVML_SUCCESS, NVML_VALUE_TYPE_DOUBLE, NVML_VALUE_TYPE_UNSIGNED_INT = 0, 0, 1
    NVML_VOLATILE_ECC, NVML_MEMORY_ERROR_TYPE_CORRECTED, NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 0, 0, 1
    NVML_TEMPERATURE_GPU = 0
    NVML_ERROR_LIBRARY_NOT_FOUND, NVML_ERROR_DRIVER_NOT_LOADED = 12, 9
    usual: ClassVar = {
        "nvmlDeviceGetTotalEccErrors": 0,
        "nvmlDeviceGetRemappedRows": (1, 0, 0, 0),
        "nvmlDeviceGetCurrentClocksEventReasons": 0x1,  # idle
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
        "nvmlDeviceGetMaxPcieLinkWidth": 16,
        "nvmlDeviceGetCurrPcieLinkGeneration": 1,  # idle too
        "nvmlDeviceGetMaxPcieLinkGeneration": 5,
        "nvmlDeviceGetTemperature": 41,
    }

    def __init__(self, init_error=None, recovery=0, **wrong):
        self.values = self.usual | wrong
        self.init_error = init_error
        self.recovery = recovery

    def nvmlInit(self):  # noqa: N802
        if self.init_error is not None:
            raise NVMLError(self.init_error)

    def nvmlShutdown(self):  # noqa: N802
        pass

    def nvmlDeviceGetCount(self):  # noqa: N802
        return 2

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetFieldValues(self, _handle, fields):  # noqa: N802
        return [field(self.recovery if number == 230 else 0) for number in fields]

    def __getattr__(self, name):
        if name not in self.values:
            raise AttributeError(name)
        value = self.values[name]

        def answer(*_):
            if isinstance(value, Exception):
                raise value
            return value

        return answer


@pytest.fixture
def play(monkeypatch):
    return lambda library: monkeypatch.setattr(nvml.importlib, "import_module", lambda _: library)


def test_healthy_devices_pass_and_are_read_whole(play):
    play(Library())
    assert nvml.check_accelerators(2) == Passed("2 devices show nothing wrong")
    device = nvml.look()[1]
    assert (device.name, device.recovery, device.remapped, device.temperature_c) == ("gpu1", 0, 1, 41)


@pytest.mark.parametrize(
    ("library", "kind", "words"),
    [
        (Library(recovery=1), Failed, "asks for a reset"),
        (Library(nvmlDeviceGetRemappedRows=(1, 2, 0, 1)), Failed, "could not be replaced"),
        (Library(nvmlDeviceGetRemappedRows=(1, 2, 1, 0)), Unknown, "at its next reset"),
        (Library(nvmlDeviceGetCurrPcieLinkWidth=8), Unknown, "8 lanes of 16"),
        (
            Library(nvmlDeviceGetCurrentClocksEventReasons=0x48),
            Unknown,
            "thermal slowdown by hardware",
        ),
        (Library(init_error=12), Absent, "no driver"),
        (Library(init_error=999), Unknown, "does not answer"),
    ],
)
def test_what_is_wrong_is_said(play, library, kind, words):
    play(library)
    outcome = nvml.check_accelerators()
    assert isinstance(outcome, kind)
    assert words in outcome.reason


def test_fewer_devices_than_expected_fail(play):
    play(Library())
    assert nvml.check_accelerators(8) == Failed("8 accelerators expected, 2 found")


def test_devices_that_answer_nothing_are_unknown_not_good(play):
    silence = {name: NVMLError(3) for name in Library.usual}
    library = Library(**silence)
    library.nvmlDeviceGetFieldValues = lambda _handle, fields: [field(0, returned=3) for _ in fields]
    play(library)
    outcome = nvml.check_accelerators()
    assert isinstance(outcome, Unknown)
    assert "gpu0, gpu1 tell neither errors nor a recovery action" in outcome.reason


def test_an_older_binding_lacks_functions_and_the_rest_is_read(play):
    library = Library()
    del library.values["nvmlDeviceGetCurrentClocksEventReasons"]
    library.values["nvmlDeviceGetCurrentClocksThrottleReasons"] = 0x20
    del library.values["nvmlDeviceGetRemappedRows"]
    play(library)
    device = nvml.look()[0]
    assert (device.clocks_reasons, device.remapped, device.uncorrected) == (0x20, None, 0)


def test_without_the_binding_accelerators_are_absent(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(nvml.importlib, "import_module", missing)
    assert isinstance(nvml.check_accelerators(), Absent)
