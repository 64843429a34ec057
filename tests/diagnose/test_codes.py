import pytest
from tests.diagnose.logs import verdict_on

from closeranks.diagnose import codes
from closeranks.diagnose.codes import CodesError
from closeranks.diagnose.evidence import Standing
from closeranks.gather.rulebook import CODE_FILE, text_of

TABLE = codes.parse(text_of(CODE_FILE))


def xid(number, rest="pid=4711, name=python", device="0000:5e:00", at="8123.4"):
    return f"[{at}] NVRM: Xid (PCI:{device}): {number}, {rest}\n"


def test_the_table_says_which_catalogue_it_follows():
    assert TABLE.version == "2025-10-29"
    assert "gpud" in TABLE.provenance


@pytest.mark.parametrize("number", [63, 69, 94, 109, 121])
def test_codes_about_which_public_tables_disagree_are_marked(number):
    assert TABLE.find(number).conflicts


def test_a_number_that_stands_twice_or_an_unknown_class_is_refused():
    text = text_of(CODE_FILE)
    with pytest.raises(CodesError, match=r"\[31\]"):
        codes.parse(text.replace("numbers = [43]", "numbers = [43, 31]"))
    with pytest.raises(CodesError, match="unknown classes: \\['apps'\\]"):
        codes.parse(text.replace('class = "app"', 'class = "apps"', 1))


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (xid(79, "GPU has fallen off the bus."), "device lost"),
        (xid(48, "DBE (double bit error) ECC error"), "device memory error"),
        (xid(95, "Uncontained ECC error"), "device memory error"),
        (xid(119, "Timeout waiting for RPC from GSP!"), "device stuck"),
        (xid(149, "NETIR_LINK_EVT Fatal XC0 i0 Link 04 (0x004505c6 0x00000000)"), "device link error"),
        ("[8124.0] NVRM: GPU 0000:5e:00.0: GPU has fallen off the bus.\n", "device lost"),
        (
            "[1.0] nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 20034, Fatal, Link 12 LTSSM Fault Up\n",
            "device link error",
        ),
    ],
)
def test_a_code_of_the_device_names_fault_and_device(line, fault):
    verdict = verdict_on((line, {"kernel": True}))
    assert verdict.fault == fault
    assert verdict.confidence > 0.9
    assert verdict.culprit.device or "off the bus." in line


@pytest.mark.parametrize("number", [45, 63, 92, 154, 999])
def test_derived_passing_and_unknown_codes_name_no_fault(number):
    assert verdict_on((xid(number), {"kernel": True})).fault == "unknown"


def test_a_non_fatal_switch_code_names_no_fault():
    line = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 12028, Non-fatal, Link 12 egress\n"
    assert codes.sighting(line, TABLE).standing is Standing.CONTEXT


def test_the_action_that_the_device_names_wins_over_the_table():
    action = "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)"
    verdict = verdict_on((xid(95, "Uncontained") + xid(154, action), {"kernel": True}))
    assert verdict.fault == "device memory error"
    assert verdict.advice.startswith("the device itself asks for: Node Reboot Required.")


def test_bursts_are_counted_not_lines_and_five_of_them_mean_a_broken_device():
    one = "".join(xid(119, at=f"{100 + line}.0") for line in range(50))
    verdict = verdict_on((one, {"kernel": True}))
    assert (verdict.proof[0].count, verdict.proof[0].bursts) == (50, 1)
    assert verdict.persistence == "intermittent"
    many = "".join(xid(46, at=f"{1000 * line}.0") for line in range(1, 6))
    verdict = verdict_on((many, {"kernel": True}))
    assert (verdict.proof[0].count, verdict.proof[0].bursts) == (5, 5)
    assert verdict.persistence == "permanent"


def test_the_same_code_of_the_program_on_different_devices_points_to_the_software():
    one = verdict_on((xid(31), {"kernel": True}))
    assert one.culprit.device == "0000:5e:00"
    assert one.scope == "device"
    many = verdict_on((xid(31) + xid(31, device="0000:af:00"), {"kernel": True}))
    assert not many.culprit
    assert (many.scope, many.persistence) == ("job", "deterministic")
    assert "suspect the software" in many.advice
