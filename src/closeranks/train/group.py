"""The process group that training code holds: it keeps its identity while its inside is swapped under a new term.

A lost peer never throws through autograd: futures complete with whatever is in the buffers and the term is
poisoned. Only errors of the inner group poison; a caller's own mistake is raised where it was made.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import torch

from closeranks.drill.inject import Launch
from closeranks.train import setup_record
from closeranks.train.inner import Inner, Place, PrivateWorld
from closeranks.train.poison import CollectiveRefused, first_line
from closeranks.train.untyped import c10d, dist, either
from closeranks.train.world import Attempt, World, first_tensor_device

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import timedelta
    from types import FrameType

BACKEND = "closeranks"
_TORCH_FOLDER = torch.__path__[0]
_APPLYING = Attempt.APPLYING  # members of an enumeration are slow to look up
_PEER_TO_PEER = frozenset(("send", "recv", "recv_anysource"))


class OuterWork(dist.Work):  # type: ignore[misc]
    """A handle whose future never fails; waiting on it in user code raises PeerLost under poison."""

    def __init__(self, future: Any, world: World) -> None:
        super().__init__()
        self._future = future
        self._world = world

    def wait(self, timeout: Any = None) -> bool:  # noqa: ARG002 - torch's signature; the inner group has the timeout
        began_ns = time.monotonic_ns()
        self._future.wait()
        self._world.own.waited(began_ns)
        _raise_in_user_code(self._world)
        return True

    synchronize = block_current_stream = wait

    def get_future(self) -> Any:
        return self._future

    def is_completed(self) -> bool:
        return bool(self._future.done())

    def is_success(self) -> bool:
        return self.is_completed() and self._world.poison is None

    def exception(self) -> None:
        return None

    def result(self) -> Any:
        return self._future.value()


class _WatchedWork(dist.Work):  # type: ignore[misc]
    """For operations without a future (gloo's send, recv, reduce_scatter): the wait itself is watched."""

    def __init__(self, work: Any, world: World, result: Any) -> None:
        super().__init__()
        self._work, self._world, self._result = work, world, result
        self._term = world.term
        self._pending = True

    def wait(self, timeout: Any = None) -> bool:
        if self._pending:
            self._pending = False
            began_ns = time.monotonic_ns()
            try:
                self._work.wait(timeout) if timeout is not None else self._work.wait()
            except RuntimeError as error:
                self._world.poison_term(self._term, first_line(error))
            finally:
                self._world.own.waited(began_ns)
                self._world.returned()
        _raise_in_user_code(self._world)
        return True

    synchronize = wait

    def get_future(self) -> torch.futures.Future[Any]:
        self.wait()
        return _done(self._result)

    def is_completed(self) -> bool:
        return not self._pending or bool(self._work.is_completed())

    def is_success(self) -> bool:
        return not self._pending and self._world.poison is None

    def source_rank(self) -> int:
        return int(self._work._source_rank())

    _source_rank = source_rank

    def result(self) -> Any:
        return self._result

    def __del__(self) -> None:
        if self._pending:  # dropped without a wait: the group must not wait for it at the next regroup
            self._pending = False
            self._world.returned()


def _raise_in_user_code(world: World) -> None:
    """Raise PeerLost if the waiting code is the user's; DDP's reducer and autograd must never see an exception."""
    if world.poison is None or torch._C._current_graph_task_id() != -1:
        return
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.endswith(("distributed_c10d.py", "c10d_logger.py")):
        frame = frame.f_back
    if frame is not None and not frame.f_code.co_filename.startswith(_TORCH_FOLDER):
        world.raise_if_poisoned()


def _size_bytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):  # asked first: that is the quicker question
        return sum(map(_size_bytes, value))
    return value.nbytes if isinstance(value, torch.Tensor) else 0


def _done(value: Any) -> torch.futures.Future[Any]:
    future: torch.futures.Future[Any] = torch.futures.Future()
    future.set_result(value)
    return future


class OuterGroup(dist.ProcessGroup):  # type: ignore[misc]
    """Forwards to an inner gloo or NCCL group of the current term."""

    def __init__(self, world: World, options: Any) -> None:
        super().__init__(options.group_rank, options.group_size)
        self._world = world
        self._size = int(options.group_size)
        self._rank = int(options.group_rank)
        self._timeout: timedelta = options.timeout
        self.members = list(options.global_ranks_in_group) or list(range(self._size))
        self.label = f"{options.group_id}:{','.join(map(str, self.members))}"
        self._is_world = not options.global_ranks_in_group
        self._name = self._description = ""
        self.inner: Inner | PrivateWorld | None = None
        world.adopt(self)

    # --- identity ----------------------------------------------------------------------------------------------

    def place(self) -> Place:
        """What the next inside needs to know."""
        return Place(self.label, self.placeholder_rank(), self._size, self._timeout)

    def placeholder_rank(self) -> int:
        """The rank without waiting for a seat: torch's own bookkeeping of an unseated spare gets 0."""
        if self._is_world:
            return self._world.seat or 0
        return self._rank

    def set_inner(self, inner: Inner | PrivateWorld | None) -> None:
        """Swap the inside."""
        self.inner = inner

    def getRank(self) -> int:  # noqa: N802 - the name that torch's trampoline looks up
        return self.placeholder_rank()

    def getSize(self) -> int:  # noqa: N802
        return self._size

    def rank(self) -> int:
        if self._is_world and self._world.seat is None and not _asked_by_torch_itself():
            return self._world.rank_for_user()
        return self.placeholder_rank()

    def size(self) -> int:
        return self._size

    def getBackendName(self) -> str:  # noqa: N802
        return BACKEND

    # torch keeps name and description in registered backends, of which a Python group has none.

    def setGroupName(self, name: str) -> None:  # noqa: N802
        self._name = name

    def getGroupName(self) -> str:  # noqa: N802
        return self._name

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        self._description = description

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._description

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)
    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    def shutdown(self) -> None:
        self._drop()

    def abort(self) -> None:
        self._drop()

    def _drop(self) -> None:
        self.inner = None
        if self in self._world.groups:
            self._world.groups.remove(self)

    # --- launching ---------------------------------------------------------------------------------------------

    def _run(self, operation: str, result: Any, call: Callable[[Any], Any]) -> Any:
        world = self._world
        if world.attempt is _APPLYING:
            raise CollectiveRefused(operation)
        if world.poison is not None:
            return OuterWork(_done(result), world)
        inner = self.inner
        if inner is None:
            raise RuntimeError(f"{operation}: process group {self.label} was shut down")
        if isinstance(inner, PrivateWorld):
            return self._answer_privately(inner, operation, result, call)
        launch = Launch(result, call)
        if world.tamper is not None:
            changed = world.tamper(operation, launch)
            if changed is None:  # a drill leaves it out
                return OuterWork(_done(result), world)
            launch = changed
        return self._send(inner, operation, result, launch)

    def _answer_privately(self, inner: PrivateWorld, operation: str, result: Any, call: Callable[[Any], Any]) -> Any:
        call(inner)
        setup = self._world.setup
        if isinstance(setup, setup_record.Replayer):
            setup.answer(setup_record.describe(operation, self.label, result), result)
        return OuterWork(_done(result), self._world)

    def _send(self, inner: Inner, operation: str, result: Any, launch: Launch) -> Any:
        world, term = self._world, self._world.term
        world.entering(operation, _size_bytes(launch.tensors))
        record = None if world.setup is None else self._begin_record(operation, result)
        try:
            work = launch.call(inner.cpu if inner.cuda is None else inner.backend_for(first_tensor_device(result)))
        except RuntimeError as error:
            world.returned()
            if operation in _PEER_TO_PEER or isinstance(error, dist.DistError):
                world.poison_term(term, first_line(error))
                return OuterWork(_done(result), world)
            raise
        except BaseException:
            world.returned()
            raise
        if world.on_launched is not None:
            world.on_launched()
        try:
            inner_future = work.get_future()
        except RuntimeError:
            return _WatchedWork(work, world, result)

        flight = world.take_off(inner, result)

        def finish(future: torch.futures.Future[Any]) -> None:
            try:
                future.value()
                if record is not None:
                    record(result)
            except RuntimeError as error:
                world.poison_term(term, first_line(error))
            finally:
                world.land(flight)

        inner_future.add_done_callback(finish)
        return OuterWork(flight.future, world)

    def show(self, tensors: Any, partial: torch.Tensor | None = None) -> None:
        """Gradients are what is reduced inside of backward; ``partial``: they may be reduced further from there."""
        on_gradients = self._world.on_gradients
        if on_gradients is not None and torch._C._current_graph_task_id() != -1:
            for tensor in tensors:
                on_gradients(tensor, partial)

    def _begin_record(self, operation: str, result: Any) -> Callable[[Any], None] | None:
        setup = self._world.setup
        if not isinstance(setup, setup_record.Recorder):
            return None
        index = setup.begin(setup_record.describe(operation, self.label, result))
        if setup_record.called_by_ddp() and operation != "allreduce" and _size_bytes(result) > _KEPT_OF_DDP_BYTES:
            return None
        if operation == "allreduce" and torch._C._current_graph_task_id() != -1:
            return None
        return lambda value: setup.fill(index, value)

    # --- collectives; the signatures are torch's ----------------------------------------------------------------

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        self.show(tensors)
        return self._run("allreduce", tensors, lambda b: b.allreduce(tensors, opts or c10d.AllreduceOptions()))

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllreduceCoalescedOptions()
        return self._run("allreduce_coalesced", tensors, lambda b: b.allreduce_coalesced(tensors, opts))

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._run("broadcast", tensors, lambda b: b.broadcast(tensors, opts or c10d.BroadcastOptions()))

    def reduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._run("reduce", tensors, lambda b: b.reduce(tensors, opts or c10d.ReduceOptions()))

    def barrier(self, opts: Any = None) -> Any:
        return self._run("barrier", [], lambda b: b.barrier(opts or c10d.BarrierOptions()))

    def allgather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        return self._run("allgather", outputs, lambda b: b.allgather(outputs, inputs, opts))

    def allgather_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        return self._run("allgather_coalesced", outputs, lambda b: b.allgather_coalesced(outputs, inputs, opts))

    def all_gather_single(self, output: Any, value: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        return self._run(
            "all_gather_single",
            [output],
            lambda b: either(b, "all_gather_single", "_allgather_base")(output, value, opts),
        )

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllgatherOptions()
        return self._run(
            "all_gather_single_coalesced",
            outputs,
            lambda b: _each(either(b, "all_gather_single", "_allgather_base"), outputs, inputs, opts),
        )

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def gather(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.GatherOptions()
        return self._run("gather", outputs or inputs, lambda b: b.gather(outputs, inputs, opts))

    def scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ScatterOptions()
        return self._run("scatter", outputs, lambda b: b.scatter(outputs, inputs, opts))

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        return self._run("reduce_scatter", outputs, lambda b: b.reduce_scatter(outputs, inputs, opts))

    def reduce_scatter_single(self, output: Any, value: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        names = ("reduce_scatter_single", "_reduce_scatter_base")
        self.show([value], output)
        return self._run("reduce_scatter_single", [output], lambda b: either(b, *names)(output, value, opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.ReduceScatterOptions()
        return self._run(
            "reduce_scatter_single_coalesced",
            outputs,
            lambda b: _each(either(b, "reduce_scatter_single", "_reduce_scatter_base"), outputs, inputs, opts),
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        opts = opts or c10d.AllToAllOptions()
        return self._run("alltoall", outputs, lambda b: b.alltoall(outputs, inputs, opts))

    def all_to_all_single(
        self, output: Any, value: Any, output_splits: Any, input_splits: Any, opts: Any = None
    ) -> Any:
        opts = opts or c10d.AllToAllOptions()
        names = ("all_to_all_single", "alltoall_base")
        return self._run(
            "all_to_all_single",
            [output],
            lambda b: either(b, *names)(output, value, output_splits, input_splits, opts),
        )

    alltoall_base = all_to_all_single

    def send(self, tensors: Any, rank: int, tag: int = 0) -> Any:
        return self._run("send", tensors, lambda b: b.send(tensors, rank, tag))

    def recv(self, tensors: Any, rank: int, tag: int = 0) -> Any:
        return self._run("recv", tensors, lambda b: b.recv(tensors, rank, tag))

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        return self._run("recv_anysource", tensors, lambda b: b.recv_anysource(tensors, tag))


_KEPT_OF_DDP_BYTES = 65536  # bucket orders are kept, parameters are not: the newcomer gets them from a donor


class _Works:
    """Several operations of a backend, waited for as one."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self, timeout: Any = None) -> bool:
        problem: RuntimeError | None = None
        for work in self._works:
            try:
                work.wait(timeout) if timeout is not None else work.wait()
            except RuntimeError as error:
                problem = problem or error
        if problem is not None:
            raise problem
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)

    def get_future(self) -> Any:
        raise RuntimeError("several operations have no common future")


def _each(operation: Any, outputs: Any, inputs: Any, opts: Any) -> _Works | Any:
    """A coalesced collective as single ones: backends do not offer theirs to Python."""
    works = [operation(output, value, opts) for output, value in zip(outputs, inputs, strict=True)]
    return works[0] if len(works) == 1 else _Works(works)


def _asked_by_torch_itself() -> bool:
    """Whether the rank is wanted by torch's set-up of a group or of DDP rather than by the user's code."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        file, function = frame.f_code.co_filename, frame.f_code.co_name
        if not file.startswith(_TORCH_FOLDER):
            return False
        if file.endswith("nn/parallel/distributed.py") or function in {"init_process_group", "_register_pg_in_world"}:
            return True
        frame = frame.f_back
    return False


def register(world_of: Callable[[], World]) -> None:
    """Make ``closeranks`` a torch.distributed backend whose groups belong to the world that ``world_of`` returns."""

    def create(options: Any, _backend_options: Any) -> OuterGroup:
        return OuterGroup(world_of(), options)

    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
