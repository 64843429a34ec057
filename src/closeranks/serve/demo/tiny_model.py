"""A language model of a few megabytes with random weights: real arithmetic of a real engine, and senseless words."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

WORDS: Final = 600
_WIDTH, _INNER, _LAYERS, _HEADS, _CONTEXT = 64, 128, 2, 4, 8192
_SYLLABLES: Final = ("ba", "co", "di", "fu", "ge", "ha", "ki", "lo", "mu", "ne", "pi", "ro", "su", "ta", "vo", "we")
_UNKNOWN, _CONTROL, _WORD, _BYTE = 2, 3, 4, 6  # kinds of tokens; a word is found in the prompt as it is written
CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ ' ' + message['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}{{ ' bababa' }}{% endif %}"
)


def write_tiny_model(path: Path, seed: int = 7) -> None:
    """Write it in GGUF; the same seed gives the same bytes. It never ends an answer by itself.

    Raises:
        ImportError: the package ``gguf`` is not there.
    """
    import gguf

    words = [f" {word}" for word in tiny_words()]
    draw = np.random.default_rng(seed)
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    kinds = [_UNKNOWN, _CONTROL, _CONTROL, *([_BYTE] * 256), *([_WORD] * WORDS)]
    spoken = len(tokens) - WORDS
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(_CONTEXT)
    writer.add_embedding_length(_WIDTH)
    writer.add_block_count(_LAYERS)
    writer.add_feed_forward_length(_INNER)
    writer.add_head_count(_HEADS)
    writer.add_head_count_kv(_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(_WIDTH // _HEADS)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * spoken + [-float(number) for number in range(WORDS)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(CHAT_TEMPLATE)

    def add(name: str, *shape: int, scale: float = 1.0) -> None:
        writer.add_tensor(name, (draw.standard_normal(shape) * scale / np.sqrt(shape[-1])).astype(np.float32))

    add("token_embd.weight", len(tokens), _WIDTH, scale=8.0)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        writer.add_tensor(f"{block}.attn_norm.weight", np.ones(_WIDTH, np.float32))
        writer.add_tensor(f"{block}.ffn_norm.weight", np.ones(_WIDTH, np.float32))
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            add(f"{block}.{name}.weight", _WIDTH, _WIDTH, scale=2.0)
        add(f"{block}.ffn_gate.weight", _INNER, _WIDTH, scale=2.0)
        add(f"{block}.ffn_up.weight", _INNER, _WIDTH, scale=2.0)
        add(f"{block}.ffn_down.weight", _WIDTH, _INNER, scale=2.0)
    writer.add_tensor("output_norm.weight", np.ones(_WIDTH, np.float32))
    output = draw.standard_normal((len(tokens), _WIDTH)).astype(np.float32) * 0.3
    output[:spoken] = 0.0  # no token but words has a chance
    writer.add_tensor("output.weight", output)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def tiny_words() -> list[str]:
    """All words that the model knows."""
    count = len(_SYLLABLES)
    return [
        _SYLLABLES[number % count] + _SYLLABLES[number // count % count] + _SYLLABLES[number // count**2]
        for number in range(WORDS)
    ]
