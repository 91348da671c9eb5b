"""Rates and bytes with their units, and files that appear whole."""

import pytest

from thinwire.core import format_bytes, parse_rate, write_atomically


@pytest.mark.parametrize(
    ("text", "bits"),
    [("100mbit", 1e8), ("1.5gbit", 1.5e9), (".5kbit", 500.0), ("9bit", 9.0), ("0mbit", 0.0), ("1.2.3gbit", None)]
    + [(text, None) for text in ("", "100", "100mbps", "-1mbit", "1 gbit", "1gbit; true", "mbit", "1Gbit")],
)
def test_a_rate_is_a_number_with_its_unit(text, bits):
    assert parse_rate(text) == bits


def test_bytes_have_three_digits_and_the_next_unit_from_a_thousand_on():
    texts = [format_bytes(count) for count in (0, 7, 999.9, 12_345, 1e6, 2.5e9, None)]
    assert texts == ["0 B", "7 B", "1 kB", "12.3 kB", "1 MB", "2.5 GB", "–"]


def test_a_file_that_cannot_be_written_leaves_the_old_one(tmp_path):
    place = tmp_path / "result.json"
    write_atomically(place, b"old")
    with pytest.raises(TypeError):
        write_atomically(place, "text")
    assert place.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["result.json"]
