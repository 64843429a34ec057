"""From --authority to a register."""

import sys

import pytest

from closeranks.authority import record
from closeranks.authority.numbered import NumberedRegister
from closeranks.authority.opening import open_register
from closeranks.authority.record import Record
from closeranks.authority.register import RegisterRefused
from closeranks.authority.sqlite import SqliteRegister
from closeranks.checkpoint.problems import StoreRefused


def test_the_text_chooses_the_kind(tmp_path):
    assert isinstance(open_register(f"sqlite:{tmp_path}/l.db", "run"), SqliteRegister)
    assert isinstance(open_register("store", "run", str(tmp_path)), NumberedRegister)


@pytest.mark.parametrize("text", ["", "sqlite:", "etcd:/h:1", "zookeeper://h:1", "stor"])
def test_what_names_no_authority_is_refused_with_an_example(text):
    with pytest.raises(RegisterRefused, match=r"expected etcd://HOST:PORT, sqlite:PATH or store, got"):
        open_register(text, "run")


def test_a_password_is_not_repeated_in_the_refusal():
    with pytest.raises(RegisterRefused) as caught:
        open_register("etdc://root:secret@h:1", "run")
    assert "secret" not in str(caught.value)


def test_store_needs_a_store():
    with pytest.raises(RegisterRefused, match="add --store"):
        open_register("store", "run")
    with pytest.raises(StoreRefused):
        open_register("store", "run", "ftp://h/x")


def test_without_httpx_the_way_to_it_is_told(monkeypatch):
    monkeypatch.delitem(sys.modules, "closeranks.authority.etcd", raising=False)
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(RegisterRefused, match=r"pip install 'closeranks\[etcd\]'"):
        open_register("etcd://h:1", "run")


def test_a_record_comes_back_as_it_was_written():
    written = Record(epoch=3, beat=7, node="n1", boot="b", term=4, members=(1, 5), nodes=("n0", "n1"))
    assert record.decode(record.encode(written)) == written
    assert record.decode(b"") == Record()
