from types import SimpleNamespace

import pytest
import torch

from closeranks.drill.fault import Fault, Kind, Lasting, Moment
from closeranks.train.protected import Protected
from closeranks.train.spoiling import batch_of, shortened, strike


def fault(kind, **changes):
    return Fault(kind=kind, seat=0, step=3, moment=Moment.APPLY, **({"draw": 5} | changes))


@pytest.fixture
def protected():
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    model(torch.ones(2, 4)).sum().backward()
    optimizer.step()
    found = Protected()
    found.add("model", model)
    found.add("optimizer", optimizer)
    return found


def bits_that_differ(before, after):
    changed = before.view(torch.int32) ^ after.view(torch.int32)
    return [(value & 0xFFFFFFFF).bit_count() for value in changed.view(-1).tolist() if value]


def tensors(protected):
    model, optimizer = protected.modules["model"], protected.optimizers["optimizer"]
    moments = [v for state in optimizer.state.values() for k, v in state.items() if k.startswith("exp")]
    return {
        Kind.FLIP_WEIGHT: [p.data for p in model.parameters()],
        Kind.FLIP_GRADIENT: [p.grad for p in model.parameters()],
        Kind.FLIP_OPTIMIZER: moments,
    }


@pytest.mark.parametrize("kind", [Kind.FLIP_WEIGHT, Kind.FLIP_GRADIENT, Kind.FLIP_OPTIMIZER])
@pytest.mark.parametrize("bits", [1, 3])
def test_a_flip_changes_so_many_bits_of_one_element_of_its_own_sort(protected, kind, bits):
    before = {sort: [t.clone() for t in found] for sort, found in tensors(protected).items()}
    assert strike(fault(kind, bits=bits), protected, None) is None
    for sort, found in tensors(protected).items():
        pairs = zip(before[sort], found, strict=True)
        changed = [count for old, new in pairs for count in bits_that_differ(old, new)]
        assert changed == ([bits] if sort is kind else [])


def test_a_flip_of_what_passes_by_leaves_the_original_alone(protected):
    gradient = torch.ones(6)
    found = strike(fault(Kind.FLIP_GRADIENT), protected, gradient)
    assert torch.equal(gradient, torch.ones(6))
    assert bits_that_differ(gradient, found) == [1]


def test_a_flip_twice_is_none_and_a_stuck_bit_stays(protected):
    flip, stuck = fault(Kind.FLIP_WEIGHT), fault(Kind.FLIP_WEIGHT, lasting=Lasting.STUCK)
    before = [p.clone() for p in protected.modules["model"].parameters()]
    strike(flip, protected, None)
    strike(flip, protected, None)
    assert all(torch.equal(a, b) for a, b in zip(before, protected.modules["model"].parameters(), strict=True))
    strike(stuck, protected, None)
    once = [p.clone() for p in protected.modules["model"].parameters()]
    strike(stuck, protected, None)
    assert all(torch.equal(a, b) for a, b in zip(once, protected.modules["model"].parameters(), strict=True))


def test_one_element_becomes_nan_and_autograd_goes_through(protected):
    value = torch.ones(3, requires_grad=True)
    found = strike(fault(Kind.NAN), protected, value)
    assert found.isnan().sum() == 1
    found.sum().backward()
    assert torch.equal(value.grad, torch.ones(3))


def test_what_is_not_there_yet_is_an_error_that_says_so():
    with pytest.raises(LookupError, match="no tensor of that kind at this moment"):
        strike(fault(Kind.FLIP_OPTIMIZER), Protected(), None)


def test_a_duplicate_is_the_batch_of_the_next_seat_and_a_stale_one_that_of_the_step_before():
    def fetch(*place):
        return place

    assert batch_of(fault(Kind.DUPLICATE_BATCH), fetch, 7, 2, 3) == (7, 0, 3)
    assert batch_of(fault(Kind.STALE_BATCH), fetch, 7, 2, 3) == (6, 2, 3)


def test_a_collective_of_the_wrong_size_has_half_of_the_elements():
    seen = []
    backend = SimpleNamespace(allreduce=lambda tensors, _options: seen.extend(tensors))
    original = torch.arange(10.0)
    shortened([original])[1](backend)
    assert torch.equal(seen[0], original[:5])
    assert seen[0].data_ptr() != original.data_ptr()
