"""A byte-level GPT and a text that every machine has, for the examples and benches."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

BYTES = 256
HEAD_WIDTH = 32
TEXT_BYTES = 4 * 2**20


class Corpus(torch.utils.data.Dataset[Tensor]):
    """The source of Python's standard library, cut into windows of ``context + 1`` bytes."""

    def __init__(self, context: int) -> None:
        self.text = standard_library_text()
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, index: int) -> Tensor:
        start = index * self.context
        return self.text[start : start + self.context + 1].long()  # (context + 1,)


def standard_library_text() -> Tensor:
    """The top-level modules one after the other, by name, at most TEXT_BYTES of them: uint8."""
    modules = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    text = b"".join(path.read_bytes() for path in modules)[:TEXT_BYTES]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Block(nn.Module):
    """Attention and a perceptron, each added to what it reads."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.heads = width // HEAD_WIDTH
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) to the same."""
        batch, time, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, self.heads, HEAD_WIDTH).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = functional.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).reshape(batch, time, width)))
        return x + self.drop(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, layers: int, width: int, context: int, dropout: float = 0.1) -> None:
        super().__init__()
        if width % HEAD_WIDTH:
            raise ValueError(f"width: expected a multiple of {HEAD_WIDTH}, got {width}")
        self.bytes = nn.Embedding(BYTES, width)
        self.places = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*[Block(width, dropout) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, BYTES)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time) bytes to (batch, time, 256) logits."""
        places = torch.arange(x.shape[1], device=x.device)
        return self.head(self.norm(self.blocks(self.bytes(x) + self.places(places))))


def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
    """Mean cross entropy in nats a byte; ``batch``: (batch, context + 1)."""
    logits = model(batch[:, :-1])
    return functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
