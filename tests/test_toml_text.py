import msgspec
import pytest

from closeranks.toml_text import Misfit, TomlProblem, blame, nearest, read_toml


class Leaf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    size_bytes: int = 0


class Whole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    title: str = ""
    one: Leaf | None = None
    leaf: tuple[Leaf, ...] = ()


TEXT = """
title = "t"

[one]
name = "a"

[[leaf]]
name = "b"

[[leaf]]
name = "c"
size_bytes = 3
"""


def test_tables_and_lists_of_tables_become_one_value():
    expected = Whole(title="t", one=Leaf(name="a"), leaf=(Leaf(name="b"), Leaf(name="c", size_bytes=3)))
    assert read_toml(TEXT, Whole, "f.toml") == expected


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "size_bytes = 3",
            "size_byte = 3",
            'f.toml line 12: leaf 2.size_byte: unknown key; did you mean "size_bytes"?',
        ),
        ("[one]", "[won]", 'f.toml line 4: won: unknown table; did you mean "one"?'),
        ("size_bytes = 3", 'size_bytes = "3"', "f.toml line 12: leaf 2.size_bytes: expected `int`, got `str`"),
        ('name = "b"', "", "f.toml line 7: leaf 1: object missing required field `name`"),
        ('title = "t"', "title = 5", "f.toml line 2: title: expected `str`, got `int`"),
        ('title = "t"', "title = ", "f.toml: not TOML: Invalid value (at line 2, column 9)"),
        ('title = "t"', "zzz = 1", "f.toml line 2: zzz: unknown key; known: title, one, leaf"),
    ],
)
def test_what_does_not_fit_is_named_with_its_line(old, new, said):
    with pytest.raises(TomlProblem) as caught:
        read_toml(TEXT.replace(old, new), Whole, "f.toml")
    assert str(caught.value) == said


def test_a_check_of_ones_own_is_blamed_the_same_way():
    problem = blame(TEXT, "f.toml", Misfit(("leaf", 1, "size_bytes"), "expected from 4, got 3"))
    assert str(problem) == "f.toml line 12: leaf 2.size_bytes: expected from 4, got 3"


def test_a_word_that_is_like_none_gets_the_list():
    assert nearest("qqq", ["one", "two"]) == "known: one, two"
