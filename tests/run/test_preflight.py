from __future__ import annotations

from closeranks.run.preflight import compare, probe_devices, probe_folder, probe_shared_memory

SAME = {"torch": "2.13.0", "python": "3.11.7", "script": "ab", "driver": "none"}


def test_equal_seats_give_no_findings():
    assert compare({0: SAME, 1: SAME}) == ()


def test_a_difference_names_the_values_and_the_seats():
    (finding,) = compare({0: SAME, 1: SAME | {"torch": "2.12.1"}, 2: SAME})
    assert finding.text == "torch differs: 2.13.0 on seats 0, 2, 2.12.1 on seat 1"
    assert finding.fatal


def test_a_driver_may_differ_and_a_missing_fact_is_unknown():
    (finding,) = compare({0: SAME, 1: {name: value for name, value in SAME.items() if name != "driver"}})
    assert (finding.text, finding.fatal) == ("driver differs: none on seat 0, unknown on seat 1", False)


def test_this_machine_passes_the_probes(tmp_path):
    assert probe_shared_memory() == ()
    assert not any(finding.fatal for finding in probe_folder(tmp_path))


def test_a_folder_that_is_gone_is_a_finding(tmp_path):
    (finding,) = probe_folder(tmp_path / "gone")
    assert finding.fatal


def test_seats_without_a_device_of_their_own_are_told():
    assert probe_devices(4, 0) == ()
    assert probe_devices(4, 4) == ()
    (finding,) = probe_devices(4, 2)
    assert "LOCAL_RANK 2" in finding.text
    assert not finding.fatal
