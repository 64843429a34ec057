"""Looking at NVIDIA accelerators through their management library, which needs no context on the device.

``nvidia-ml-py`` is used where it can be imported. A question that a device does not answer leaves its value empty.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, Final

from closeranks.detect.accelerators import Concern, Device, judge
from closeranks.probe.outcome import Absent, Failed, Outcome, Passed, Unknown

_RECOVERY_FIELD: Final = 230  # NVML_FI_DEV_GET_GPU_RECOVERY_ACTION, where the binding is older than the driver
_PCIE_REPLAY_FIELD: Final = 94  # NVML_FI_DEV_PCIE_REPLAY_COUNTER
_SLOW_CALL_S: Final = 2.0  # a driver that takes longer for one device is in trouble


def look() -> tuple[Device, ...] | Absent | Unknown:
    """One look at every device."""
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return Absent("nvidia-ml-py is not installed: accelerators are not looked at")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        if _is(nvml, error, "LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED"):
            return Absent(f"no driver: {error}")
        return Unknown(f"the driver does not answer: {error}")
    try:
        return tuple(_device(nvml, index) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        return Unknown(f"the driver stopped to answer: {error}")
    finally:
        nvml.nvmlShutdown()


def check_accelerators(expected: int | None = None) -> Outcome:
    """Whether every device is as it should be. ``expected``: how many there should be, None: whatever there is."""
    devices = look()
    if not isinstance(devices, tuple):
        absent_but_wanted = isinstance(devices, Absent) and expected
        return Failed(f"{expected} accelerators expected, and {devices.reason}") if absent_but_wanted else devices
    if not devices and not expected:
        return Absent("the driver knows no device")
    if expected is not None and len(devices) < expected:
        return Failed(f"{expected} accelerators expected, {len(devices)} found")
    concerns = [concern for device in devices for concern in judge(device)]
    slow = [device for device in devices if device.call_s > _SLOW_CALL_S]
    concerns += [
        Concern(sign=f"{d.name} driver", detail=f"it took {d.call_s:.1f} s to answer", drain=False) for d in slow
    ]
    if any(concern.drain for concern in concerns):
        return Failed(_told(concerns))
    if concerns:
        return Unknown(_told(concerns))
    silent = [device.name for device in devices if device.recovery is None and device.uncorrected is None]
    if silent:
        return Unknown(f"{', '.join(silent)} tell neither errors nor a recovery action")
    return Passed(f"{len(devices)} devices show nothing wrong")


def _told(concerns: list[Concern]) -> str:
    return "; ".join(f"{concern.sign}: {concern.detail}" for concern in concerns)


def _device(nvml: ModuleType, index: int) -> Device:
    began_s = time.monotonic()
    handle = nvml.nvmlDeviceGetHandleByIndex(index)

    def ask(question: Callable[..., Any], *words: Any) -> Any:
        try:
            return question(handle, *words)
        except (nvml.NVMLError, AttributeError):
            return None

    def errors(kind: int) -> int | None:
        return _number(ask(_named(nvml, "nvmlDeviceGetTotalEccErrors"), kind, nvml.NVML_VOLATILE_ECC))

    remapped = ask(_named(nvml, "nvmlDeviceGetRemappedRows")) or (None, None, None, None)
    corrected_rows, uncorrected_rows, pending, failed = tuple(remapped)[:4]
    reasons = ask(_named(nvml, "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"))
    return Device(
        name=f"gpu{index}",
        recovery=_field(nvml, handle, getattr(nvml, "NVML_FI_DEV_GET_GPU_RECOVERY_ACTION", _RECOVERY_FIELD)),
        corrected=errors(nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        uncorrected=errors(nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        remapped=None if corrected_rows is None else int(corrected_rows) + int(uncorrected_rows),
        remap_pending=None if pending is None else bool(pending),
        remap_failed=None if failed is None else bool(failed),
        clocks_reasons=_number(reasons),
        pcie_width=_number(ask(_named(nvml, "nvmlDeviceGetCurrPcieLinkWidth"))),
        pcie_width_max=_number(ask(_named(nvml, "nvmlDeviceGetMaxPcieLinkWidth"))),
        pcie_generation=_number(ask(_named(nvml, "nvmlDeviceGetCurrPcieLinkGeneration"))),
        pcie_generation_max=_number(ask(_named(nvml, "nvmlDeviceGetMaxPcieLinkGeneration"))),
        replays=_field(nvml, handle, _PCIE_REPLAY_FIELD),
        temperature_c=_number(ask(_named(nvml, "nvmlDeviceGetTemperature"), nvml.NVML_TEMPERATURE_GPU)),
        call_s=time.monotonic() - began_s,
    )


def _named(nvml: ModuleType, *names: str) -> Callable[..., Any]:
    """The first of these functions that this version of the binding has."""

    def missing(*_: Any) -> None:
        return None

    return next((getattr(nvml, name) for name in names if hasattr(nvml, name)), missing)


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _field(nvml: ModuleType, handle: Any, number: int) -> int | None:
    try:
        (found,) = nvml.nvmlDeviceGetFieldValues(handle, [number])
    except (nvml.NVMLError, AttributeError, ValueError):
        return None
    if found.nvmlReturn != nvml.NVML_SUCCESS:
        return None
    member = {nvml.NVML_VALUE_TYPE_DOUBLE: "dVal", nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal"}.get(found.valueType)
    return int(getattr(found.value, member or "ullVal"))


def _is(nvml: ModuleType, error: Any, *names: str) -> bool:
    return getattr(error, "value", None) in {getattr(nvml, f"NVML_ERROR_{name}", None) for name in names}
