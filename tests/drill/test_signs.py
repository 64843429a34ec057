import pytest

from closeranks.drill.signs import WARNINGS, signs_in
from closeranks.events import (
    CanaryFailed,
    CheckpointVerified,
    CorruptionSuspected,
    ErrorSeen,
    Event,
    IncidentOpened,
    NetworkSlow,
    NodeQuarantined,
    Record,
    SaveFailed,
    StepClosed,
    TierMissed,
)


def sign(event):
    record = Record(seq=0, wall_s=0.0, mono_s=4.0, run="r", node="n", term=1, event=event)
    return next(iter(signs_in([record])), None)


@pytest.mark.parametrize(
    ("event", "detector", "seats", "word"),
    [
        (ErrorSeen(detector="exit", seat=2, proc=3, detail="ended", incident=1), "exit", (2,), "ended"),
        (IncidentOpened(incident=1, seats=(0, 2), summary="lost"), "incident", (0, 2), "lost"),
        (SaveFailed(step=3, problem="no space"), "save", (), "no space"),
        (TierMissed(step=3, tier="peers", problem="gone"), "save", (), "peers: gone"),
        (CheckpointVerified(generation=1, held=False, detail="torn", took_s=1.0), "verification", (), "torn"),
        (CorruptionSuspected(source="canary", detail="losses"), "corruption", (), "canary: losses"),
        (NetworkSlow(step=9, apart_s=0.4, usual_s=0.01), "network", (), "longer in collectives: 0.4: 0.01"),
        (NodeQuarantined(node="n1", host="h", hours=1.0, reason="three faults"), "quarantine", (), "three"),
    ],
)
def test_a_sign_has_its_detector_its_seats_and_its_words(event, detector, seats, word):
    found = sign(event)
    assert found is not None
    assert (found.detector, found.seats, found.mono_s) == (detector, seats, 4.0)
    assert word in found.text


def test_what_goes_well_is_no_sign():
    assert sign(StepClosed(step=1, began_mono_s=0, closed_mono_s=1, losses=())) is None
    assert sign(CheckpointVerified(generation=1, held=True, detail="whole", took_s=1.0)) is None


def test_an_incident_has_a_diagnosis_and_a_warning_is_all_that_is_said():
    assert sign(ErrorSeen(detector="exit", seat=2, proc=3, detail="ended", incident=1)).of_incident
    assert not sign(ErrorSeen(detector="exit", seat=None, proc=3, detail="a spare ended")).of_incident
    assert not sign(SaveFailed(step=3, problem="no space")).of_incident


def test_a_node_that_is_kept_out_is_named():
    assert sign(NodeQuarantined(node="n1", host="h", hours=1.0, reason="three faults")).node == "n1"


def test_every_kind_of_warning_that_the_journal_knows_has_the_fields_that_are_read():
    kinds = {kind.__name__: kind for kind in Event.__subclasses__()}
    known = [name for name in WARNINGS if name in kinds]
    assert {"SaveFailed", "TierMissed", CanaryFailed.__name__} <= set(known)
    for name in known:
        fields = {*WARNINGS[name].words, *(["seats"] if WARNINGS[name].names_seats else [])}
        assert fields <= set(kinds[name].__struct_fields__), name
