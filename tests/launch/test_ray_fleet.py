"""What becomes of the nodes of a run under Ray, with something in place of Ray that answers at once."""

from types import SimpleNamespace

import pytest

from closeranks.launch.ray import Nodes, Supervisor, run


class RayError(Exception):
    pass


class RayActorError(RayError):
    pass


class RayTaskError(RayError):
    def __init__(self, cause):
        super().__init__("a traceback of many lines")
        self.cause = cause


class Actor:
    def __init__(self, end):
        self.run = SimpleNamespace(remote=lambda *_: Future(end))
        self.endpoint = SimpleNamespace(remote=lambda: Future("10.0.0.1:2000"))


class Future:
    def __init__(self, end):
        self.end = end


class Ray:
    """Actors end as they are told to, in the order in which they are made."""

    exceptions = SimpleNamespace(RayError=RayError, RayActorError=RayActorError, RayTaskError=RayTaskError)

    def __init__(self, ends):
        self._ends = iter(ends)
        group = SimpleNamespace(bundle_specs=[{"CPU": 1.0}] * 4, wait=lambda _: True)
        self.util = SimpleNamespace(
            placement_group=lambda *_, **__: group,
            remove_placement_group=lambda _: None,
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=lambda **_: None),
        )

    def is_initialized(self):
        return True

    def remote(self, kind):
        assert kind is Supervisor
        made = SimpleNamespace(remote=lambda: Actor(next(self._ends)))
        return SimpleNamespace(options=lambda **_: made)

    def wait(self, futures, num_returns=1, timeout=0):  # noqa: ARG002 - as Ray's
        """One at a time of those that run; all that are placed."""
        return futures[:num_returns], futures[num_returns:]

    def get(self, future):
        if isinstance(future.end, Exception):
            raise future.end
        return future.end

    def kill(self, actor):
        pass


@pytest.mark.parametrize(
    ("ends", "code"),
    [
        ([RayTaskError(FileNotFoundError("/only/here")), 0, 0], 0),  # it ended the actors of all other nodes
        ([0, RayTaskError(BrokenPipeError()), 0], 0),
        ([RayActorError(), 0, 0, 0], 0),  # the last one was started in place of the first
        ([75, RayTaskError(OSError()), 7], 7),
        ([RayTaskError(OSError()), RayTaskError(OSError()), RayTaskError(OSError())], 255),
    ],
)
def test_a_node_where_no_supervisor_can_be_started_is_lost_and_the_job_is_not(ends, code, monkeypatch, capsys):
    monkeypatch.setattr("importlib.import_module", lambda _: Ray(ends))
    assert run(Nodes(nnodes=2, spares=1), ["train.py"]) == code
    failed = [rank for rank, end in enumerate(ends) if isinstance(end, RayTaskError)]
    told = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[2].partition(":")[0] for line in told] == [f" n{rank}" for rank in failed]


def test_the_reason_is_said(monkeypatch, capsys):
    monkeypatch.setattr("importlib.import_module", lambda _: Ray([RayTaskError(FileNotFoundError("/only/here")), 0, 0]))
    run(Nodes(nnodes=2, spares=1), ["train.py"])
    assert "n0: no supervisor there: FileNotFoundError: /only/here" in capsys.readouterr().err
