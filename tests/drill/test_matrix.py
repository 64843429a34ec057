import pytest

from closeranks.drill import matrix
from closeranks.drill.expected import Expected, Phase
from closeranks.drill.fault import Kind, Lasting, Moment
from closeranks.drill.matrix import CELLS, Cell, NothingToDrillError, UnknownCellError, chosen, episode, node_faults
from closeranks.drill.nodes.faults import NodeKind, NodeMoment

DRILLED = [cell for cell in CELLS if isinstance(cell.expected, Expected)]
OF_PROCESSES = [cell for cell in DRILLED if not cell.of_nodes]


def cell(key):
    return next(cell for cell in CELLS if cell.key == key)


def test_every_cell_says_what_is_right_or_why_it_is_empty():
    for each in CELLS:
        expected = each.expected
        if isinstance(expected, str):
            assert expected.startswith(("not applicable: ", "not run: ")), each.key
        elif not each.row.control:
            assert expected.faults or expected.said or each.phase in (Phase.RECOVERING, Phase.START_UP), each.key


def test_there_are_more_than_twenty_kinds_of_faults_and_four_controls():
    assert matrix.kinds(CELLS) >= 20
    assert sum(row.control for row in {each.row.name: each.row for each in CELLS}.values()) == 4


def test_every_fault_that_is_injected_promises_how_much_may_be_lost_and_for_how_long():
    assert all(each.expected.rpo_steps >= 0 and each.expected.rto_s > 0 for each in DRILLED)


def test_cells_are_told_apart_by_their_keys_and_can_be_asked_for_by_them():
    keys = [each.key for each in CELLS]
    assert len(set(keys)) == len(keys)
    assert all(chosen(key) == (cell(key),) for key in keys)


def test_a_row_a_column_and_a_set_can_be_asked_for():
    assert {each.phase for each in chosen("kill")} == set(Phase)
    assert {each.row.name for each in chosen(":saving")} == {each.row.name for each in CELLS}
    assert chosen("all") == CELLS
    assert len(chosen("quick")) == 4
    assert chosen("kill:idle, kill:idle") == (cell("kill:idle"),)


def test_a_word_that_names_no_cell_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownCellError, match=r"'kil:forward'; did you mean 'kill:forward'"):
        chosen("kil:forward")


@pytest.mark.parametrize("key", [each.key for each in OF_PROCESSES])
def test_the_same_seed_draws_the_same_episode(key):
    drawn = episode(cell(key), 3, ("train.py",))
    assert drawn == episode(cell(key), 3, ("train.py",))
    struck = drawn.faults[-1]
    assert 0 <= struck.seat < drawn.run.seats
    assert (struck.kind, struck.lasting) == (cell(key).row.kind, cell(key).row.lasting)


def test_seeds_and_cells_draw_differently():
    drawn = {episode(cell("kill:forward"), seed, ("x",)).faults for seed in range(8)}
    assert len(drawn) > 4


def test_a_recovery_is_brought_about_by_the_loss_of_another_seat():
    before, struck = episode(cell("freeze:recovering"), 0, ("x",)).faults
    assert (before.kind, struck.kind) == (Kind.KILL, Kind.FREEZE)
    assert before.seat != struck.seat
    assert struck.due(Moment.RECOVERING, before.step - 1)  # the step before the one that was lost is closed


def test_an_empty_cell_and_one_of_nodes_have_no_episode_of_processes():
    for key in ("wrong-size:idle", "partition:collective", "lost-metrics:idle"):
        with pytest.raises(NothingToDrillError):
            episode(cell(key), 0, ("x",))
    with pytest.raises(NothingToDrillError):
        node_faults(cell("kill:forward"), 0)


def test_a_cut_in_a_recovery_follows_upon_the_loss_of_another_node():
    before, cut = node_faults(cell("partition:recovering"), 0)
    assert (before.kind, before.moment, cut.moment) == (NodeKind.NODE_KILL, NodeMoment.STEP, NodeMoment.RECOVERY)
    assert before.node != cut.node
    (alone,) = node_faults(cell("partition:collective"), 0)
    assert alone.moment is NodeMoment.STEP


def test_losses_begin_once_it_is_known_how_long_steps_take():
    (losses,) = node_faults(cell("packet-loss:collective"), 0)
    assert losses.step > cell("packet-loss:collective").row.calm_steps


def test_a_model_says_what_how_long_and_how_many_bits():
    models = {each.row.name: each.row.model for each in CELLS}
    assert models["flip-3-bits"] == "weight, transient, 3 bits"
    assert models["stuck-gradient"] == "gradient, stuck, 1 bit"
    assert models["kill"] == "process, transient"


def test_all_models_that_are_asked_for_occur():
    rows = {each.row.name: each.row for each in CELLS}.values()
    assert {row.lasting for row in rows} == set(Lasting)
    assert {"weight", "gradient", "activation", "optimizer state", "a failing call"} <= {row.where for row in rows}


def test_a_start_up_waits_less_long_than_the_run():
    words = matrix.run_of(Cell(row=cell("kill:start-up").row, phase=Phase.START_UP), ("x",)).options
    assert "--join-timeout" in words
