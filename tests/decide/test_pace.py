from closeranks.decide.pace import WINDOW_STEPS, Pace, band, disturbed, recovered, stepped


def after(pace, durations_s, now_s=0.0):
    events = []
    for duration_s in durations_s:
        now_s += duration_s
        pace, event = stepped(pace, duration_s, now_s)
        events += [event] if event is not None else []
    return pace, events


def test_the_band_is_at_least_a_quarter_wide_and_follows_the_spread():
    assert band((1.0,) * 9) == (0.75, 1.25)
    assert band((1.0, 1.2, 0.8, 1.2, 0.8)) == (1.0 - 3 * (1.2 - 1.0), 1.0 + 3 * (1.2 - 1.0))


def test_three_steps_in_a_row_within_the_band_are_normal_again():
    pace, _ = after(Pace(), [0.1] * 20)
    pace = recovered(disturbed(pace), incident=4, opened_s=-1.0)
    pace, (event,) = after(pace, [0.5, 0.1, 0.3, 0.1, 0.1, 0.1, 0.1])
    assert event.incident == 4
    assert event.step_s == 0.1
    assert abs(event.after_s - 2.0) < 1e-9, "since the first sign, up to the first of the three"
    assert pace.settling is None


def test_a_faster_step_is_no_disturbance():
    pace, _ = after(Pace(), [0.1] * 20)
    _, events = after(recovered(pace, 1, 0.0), [0.01] * 3)
    assert len(events) == 1


def test_a_job_with_a_new_pace_learns_it_in_the_end():
    pace, _ = after(Pace(), [0.1] * 20)
    pace, events = after(recovered(pace, 1, 0.0), [1.0] * (WINDOW_STEPS + 10))
    assert events == []
    assert pace.settling is None
    assert set(pace.steps_s) == {1.0}


def test_without_a_known_pace_there_is_nothing_to_come_back_to():
    assert recovered(Pace(steps_s=(0.1,)), 1, 0.0).settling is None
