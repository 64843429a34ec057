"""Training scripts that the tests run in worker processes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import closeranks as cr
from closeranks.train.world import World

STEPS = 12


class Net(nn.Module):
    def __init__(self, width: int = 32, norm: bool = False, dropout: float = 0.1) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=dropout)
        self.body = nn.TransformerEncoder(layer, 2)
        self.norm = nn.BatchNorm1d(width) if norm else nn.Identity()
        self.head = nn.Linear(width, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.body(self.embed(x))
        return self.head(self.norm(hidden.transpose(1, 2)).transpose(1, 2))


class Text:
    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randint(0, 64, (16,), generator=torch.Generator().manual_seed(index))


def loss_of(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x).view(-1, 64), x.view(-1))


def plain() -> None:
    train(lambda: DistributedDataParallel(Net(), broadcast_buffers=False), scheduled=True)


def long() -> None:
    """So many steps that what befalls it does so in its midst, however fast they are."""
    train(lambda: DistributedDataParallel(Net(), broadcast_buffers=False), steps=300)


def batch_norm() -> None:
    train(lambda: DistributedDataParallel(Net(norm=True), broadcast_buffers=False), scheduled=True)


def unused_parameters() -> None:
    train(lambda: DistributedDataParallel(Net(), find_unused_parameters=True))


def static_graph() -> None:
    train(lambda: DistributedDataParallel(Net(), static_graph=True))


def compiled() -> None:
    """A compiled model inside DDP; every newcomer compiles in its rehearsal. Small: compiling takes the time here."""

    def build() -> nn.Module:
        net = nn.Sequential(nn.Embedding(64, 32), nn.Linear(32, 32), nn.LayerNorm(32), nn.Tanh(), nn.Linear(32, 64))
        return DistributedDataParallel(torch.compile(net, backend="aot_eager"))

    train(build)


def train(build: Callable[[], nn.Module], *, scheduled: bool = False, steps: int = STEPS) -> None:
    """What a user writes."""
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Text(), global_batch=10, seed=3))
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS) if scheduled else None
    if scheduler is not None:
        job.protect(scheduler=scheduler)
    for step in job.steps(until=steps):
        with step:
            loss = loss_of(model, step.batch)
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            if scheduler is not None:
                scheduler.step()
            optimizer.zero_grad()


def collectives() -> None:
    """Every collective that user code calls, checked against its definition on each rank."""
    import torch.distributed as dist
    import torch.distributed._functional_collectives as functional
    from torch.distributed.device_mesh import init_device_mesh

    job = cr.join()
    rank, size = dist.get_rank(), dist.get_world_size()
    total = sum(range(size))

    def mine(value: float = 0.0) -> torch.Tensor:
        return torch.full((4,), float(rank) + value)

    x = mine()
    dist.all_reduce(x)
    assert x.tolist() == [total] * 4
    x = mine()
    dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait()
    assert x.tolist() == [size - 1] * 4
    work = dist.all_reduce(x := mine(), async_op=True)
    work.get_future().wait()
    assert work.is_completed() and x.tolist() == [total] * 4
    dist.broadcast(x := mine(), src=1)
    assert x.tolist() == [1] * 4
    dist.reduce(x := mine(), dst=2)
    assert rank != 2 or x.tolist() == [total] * 4
    parts = [torch.zeros(4) for _ in range(size)]
    dist.all_gather(parts, mine())
    assert [int(p[0]) for p in parts] == list(range(size))
    dist.all_gather_into_tensor(whole := torch.zeros(4 * size), mine())
    assert whole.view(size, 4)[:, 0].tolist() == list(range(size))
    dist.reduce_scatter_tensor(out := torch.zeros(4), torch.arange(4.0 * size))
    assert out.tolist() == (torch.arange(4.0 * size)[4 * rank : 4 * rank + 4] * size).tolist()
    dist.reduce_scatter(out, [torch.full((4,), float(i)) for i in range(size)])
    assert out.tolist() == [rank * size] * 4
    gathered = [torch.zeros(4) for _ in range(size)] if rank == 0 else None
    dist.gather(mine(), gathered, dst=0)
    assert gathered is None or [int(p[0]) for p in gathered] == list(range(size))
    dist.scatter(out, [torch.full((4,), float(i)) for i in range(size)] if rank == 0 else None, src=0)
    assert out.tolist() == [rank] * 4
    dist.all_to_all_single(out4 := torch.zeros(size), torch.full((size,), float(rank)))
    assert out4.tolist() == list(range(size))
    lists = [torch.zeros(1) for _ in range(size)]
    dist.all_to_all(lists, [torch.full((1,), float(rank)) for _ in range(size)])
    assert [int(t) for t in lists] == list(range(size))
    dist.barrier()
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [o["rank"] for o in objects] == list(range(size))
    box = [f"from {rank}"]
    dist.broadcast_object_list(box, src=3)
    assert box == ["from 3"]
    if rank == 0:
        dist.send(mine(), 1)
        work = dist.isend(mine(5), 1)
        work.wait()
    elif rank == 1:
        dist.recv(x := torch.zeros(4), 0)
        assert x.tolist() == [0] * 4
        dist.recv(x)
        assert x.tolist() == [5] * 4
    peer = rank ^ 1
    ops = [dist.P2POp(dist.isend, mine(), peer), dist.P2POp(dist.irecv, got := torch.zeros(4), peer)]
    for request in dist.batch_isend_irecv(ops):
        request.wait()
    assert got.tolist() == [peer] * 4
    pair = dist.new_group([0, 1])
    if rank < 2:
        dist.all_reduce(x := mine(), group=pair)
        assert x.tolist() == [1] * 4
    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("a", "b"))
    dist.all_reduce(x := mine(), group=mesh["b"].get_group())
    half = size // 2
    assert x[0] == sum(range((rank // half) * half, (rank // half + 1) * half))
    y = functional.all_reduce(mine(), "sum", dist.group.WORLD)
    assert y.tolist() == [total] * 4
    y = functional.all_gather_tensor(mine(), 0, dist.group.WORLD)
    assert y.view(size, 4)[:, 0].tolist() == list(range(size))
    y = functional.reduce_scatter_tensor(torch.arange(4.0 * size), "sum", 0, dist.group.WORLD)
    assert y.tolist() == (torch.arange(4.0 * size)[4 * rank : 4 * rank + 4] * size).tolist()
    try:
        dist.all_reduce(torch.zeros(3).to_sparse(), op=dist.ReduceOp.PRODUCT)
    except (RuntimeError, ValueError):
        assert job.world.poison is None  # our own mistake is no lost peer
    else:
        raise AssertionError("a senseless call passed")
    job.world.wait_quiet(5)
    for step in job.steps(until=1):
        with step:
            pass


def fsdp2() -> None:
    """Fully sharded training: it runs on our groups."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2, job.size // 2), mesh_dim_names=("replicate", "shard"))
    model = Net()
    for layer in model.body.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batches = cr.Batches(Text(), global_batch=8, seed=3)
    job.protect(model=model, optimizer=optimizer, batches=batches)
    first = last = None
    for step in job.steps(until=8):
        with step:
            loss = loss_of(model, step.batch)
            loss.backward()
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        first, last = first or float(loss), float(loss)
    assert last < first, (first, last)


def accumulate() -> None:
    """no_sync through micro-batches, a GradScaler that skips a step now and then, uneven shares."""
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(norm=True))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40, growth_interval=2)
    batches = cr.Batches(Text(), global_batch=22, seed=3)
    job.protect(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler, batches=batches)
    for step in job.steps(until=STEPS):
        with step:
            total = 0.0
            for part in step.micro_batches(2):
                with torch.autocast("cpu", torch.bfloat16):
                    loss = loss_of(model, part.batch) * part.weight
                scaler.scale(loss).backward()
                total += float(loss)
            step.report(loss=total)
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            optimizer.zero_grad()


def swallowing() -> None:
    """The user's code catches everything; poison must not be lost in it."""
    torch.set_num_threads(1)
    job = cr.join(seed=7)
    torch.manual_seed(0)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Text(), global_batch=10, seed=3))
    for step in job.steps(until=STEPS):
        with step:
            try:
                loss = loss_of(model, step.batch)
                loss.backward()
                step.report(loss=loss)
                torch.distributed.all_reduce(torch.zeros(1))
                optimizer.step()
            except Exception:  # noqa: S110 - what users write
                pass
            optimizer.zero_grad()


def set_up() -> None:
    """Set-up collectives whose results a newcomer must receive, and a group made by the script."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    job = cr.join(seed=7)
    box = [41 if job.rank == 1 else None]
    dist.broadcast_object_list(box, src=1)
    dist.barrier()
    width = torch.tensor([32 if job.rank == 0 else 0])
    dist.all_reduce(width)
    pairs = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    torch.manual_seed(int(box[0]))
    model = DistributedDataParallel(Net(width=int(width)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Text(), global_batch=10, seed=3))
    for step in job.steps(until=STEPS):
        with step:
            loss = loss_of(model, step.batch)
            loss.backward()
            norm = torch.zeros(1)
            dist.all_reduce(norm, group=pairs[job.rank // 2])
            step.report(loss=loss)
            optimizer.step()
            optimizer.zero_grad()
        with job.section("evaluate"):
            dist.all_reduce(torch.ones(1))


def sockets_of_the_user() -> None:
    """A connection of the user's own must survive a recovery."""
    import socket

    torch.set_num_threads(1)
    listener = socket.create_server(("127.0.0.1", 0))
    client = socket.create_connection(listener.getsockname())
    served, _ = listener.accept()
    train(lambda: DistributedDataParallel(Net()))
    client.sendall(b"alive")
    assert served.recv(5) == b"alive"
    late = socket.create_connection(listener.getsockname())
    listener.accept()[0].sendall(b"x")
    assert late.recv(1) == b"x"


def refused() -> None:
    """A collective after the optimizer has begun is refused by name."""
    import torch.distributed as dist

    torch.set_num_threads(1)
    job = cr.join(seed=7)
    model = DistributedDataParallel(Net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    job.protect(model=model, optimizer=optimizer, batches=cr.Batches(Text(), global_batch=10, seed=3))
    seen = []
    for step in job.steps(until=2):
        with step:
            loss_of(model, step.batch).backward()
            optimizer.step()
            optimizer.zero_grad()
            try:
                dist.all_reduce(torch.ones(1))
            except RuntimeError as error:
                seen.append(str(error))
    assert seen and all("allreduce inside the step block" in text for text in seen), seen


def endless() -> None:
    """Runs until it is told to stop."""
    train(lambda: DistributedDataParallel(Net()), steps=10**9)


def abandoning() -> None:
    """As ``endless``; of the group that ends with the fifth term, one thread of gloo seems to wait for ever."""
    retire = World._retire

    def abandon(world: World) -> None:
        if world.term == 6:
            for group in world.groups:
                world.abandoned += group.inner.abandon()
        retire(world)

    World._retire = abandon
    endless()
