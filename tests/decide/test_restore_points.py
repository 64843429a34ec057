from closeranks.decide.protocol import Origin
from closeranks.decide.restore_points import Kept, RestorePoint, restore_points


def _steps(points):
    return [(p.step, p.generation, p.in_memory) for p in points]


def test_the_newest_step_comes_first_wherever_it_is():
    kept = [Kept(generation=2, step=10), Kept(generation=5, step=20)]
    assert _steps(restore_points(Origin.NEWEST, 25, kept)) == [(25, None, True), (20, 5, False), (10, 2, False)]


def test_a_step_that_is_in_memory_and_in_the_store_is_one_point_with_two_homes():
    points = restore_points(Origin.NEWEST, 20, [Kept(generation=5, step=20)])
    assert points == (RestorePoint(step=20, in_memory=True, generation=5),)


def test_memory_that_is_older_than_the_store_is_tried_in_its_place():
    # After a roll back the steps of the store may be ahead of those in memory.
    kept = [Kept(generation=9, step=30), Kept(generation=2, step=10)]
    assert _steps(restore_points(Origin.NEWEST, 20, kept)) == [(30, 9, False), (20, None, True), (10, 2, False)]


def test_a_generation_that_a_drill_could_not_read_is_not_tried():
    assert restore_points(Origin.NEWEST, None, [Kept(generation=5, step=20, broken=True)]) == ()


def test_rolling_back_prefers_what_was_verified_and_leaves_out_what_is_not_trusted():
    kept = [
        Kept(generation=2, step=10, verified=True),
        Kept(generation=5, step=20),
        Kept(generation=7, step=30, trusted=False),
    ]
    assert _steps(restore_points(Origin.VERIFIED, 40, kept)) == [(10, 2, False), (20, 5, False)]


def test_a_group_that_begins_with_nothing_has_no_point():
    assert restore_points(Origin.NOTHING, 25, [Kept(generation=2, step=10)]) == ()


def test_what_only_other_nodes_or_the_local_disk_hold_is_a_point_too():
    points = restore_points(Origin.NEWEST, None, [Kept(generation=5, step=20)], elsewhere=[25, 20])
    assert _steps(points) == [(25, None, False), (20, 5, False)]
    assert _steps(restore_points(Origin.VERIFIED, None, [Kept(generation=5, step=20)], [25])) == [(20, 5, False)]
