import bz2
import gzip
import lzma

import pytest

from closeranks.gather import reading
from closeranks.gather.reading import ReadingError, looks_like_text, pieces

TEXT = b"step 1 | loss = 2.0\n" * 2000
PACKED = {"gz": gzip.compress, "xz": lzma.compress, "bz2": bz2.compress, "plain": bytes}


def content(path):
    return b"".join(piece.data for piece in pieces(path))


@pytest.mark.parametrize("kind", PACKED)
def test_packed_files_are_known_by_their_first_bytes_whatever_their_name(tmp_path, kind):
    path = tmp_path / "log"
    path.write_bytes(PACKED[kind](TEXT))
    assert content(path) == TEXT
    assert list(pieces(path))[-1].stored_bytes == path.stat().st_size


def test_zstd_is_read_where_its_library_is_there_and_else_named(tmp_path, monkeypatch):
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "log.zst"
    path.write_bytes(zstandard.compress(TEXT) + zstandard.compress(b"more\n"))
    assert content(path) == TEXT + b"more\n"
    monkeypatch.setitem(__import__("sys").modules, "zstandard", None)
    with pytest.raises(ReadingError, match=r"closeranks\[compress\]"):
        content(path)


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_a_cut_file_gives_what_is_there_and_says_that_it_is_damaged(tmp_path, kind):
    path = tmp_path / "log"
    packed = PACKED[kind](bytes(range(256)) * 8_000)
    path.write_bytes(packed[: len(packed) // 2])
    with pytest.raises(ReadingError, match="damaged or cut off"):
        content(path)


def test_zstd_that_was_cut_off_says_so_though_its_library_does_not(tmp_path):
    zstandard = pytest.importorskip("zstandard")
    path, packed = tmp_path / "log", zstandard.compress(bytes(range(256)) * 9000) + zstandard.compress(TEXT)
    path.write_bytes(packed[:-5])
    got = []
    with pytest.raises(ReadingError, match="last frame is not complete"):
        got.extend(piece.data for piece in pieces(path))
    assert b"".join(got).startswith(bytes(range(256)) * 9000)


@pytest.mark.parametrize("order", ["utf-16-le", "utf-16-be"])
def test_utf_16_with_its_mark_is_read_as_text(tmp_path, order):
    path = tmp_path / "log"
    path.write_bytes(("\ufeff" + TEXT.decode()).encode(order))
    assert content(path).decode().removeprefix("\ufeff") == TEXT.decode()


@pytest.mark.parametrize(
    ("head", "text"),
    [
        (TEXT, True),
        (bytes(4096) + b"step 1\n", True),
        ("Müller\n".encode("latin-1") * 9, True),
        (b"\x1b[31mred\x1b[0m\r", True),
        (bytes(64), False),
        (bytes(range(256)), False),
    ],
)
def test_what_is_no_text_is_told_from_logs_with_holes_and_broken_signs(head, text):
    assert looks_like_text(head) is text


@pytest.mark.parametrize("kind", ["gz", "xz", "bz2"])
def test_a_bomb_is_left_when_it_has_unpacked_to_more_than_logs_do(tmp_path, kind, monkeypatch):
    monkeypatch.setattr(reading, "RATIO_COUNTS_FROM_BYTES", 2**20)
    path = tmp_path / "log"
    path.write_bytes(PACKED[kind](bytes(2**24)))
    taken = []
    with pytest.raises(ReadingError, match="no log does"):
        taken.extend(len(piece.data) for piece in pieces(path))
    assert sum(taken) < 2**24


def test_what_is_not_there_is_said(tmp_path):
    with pytest.raises(ReadingError, match="No such file"):
        content(tmp_path / "absent")
