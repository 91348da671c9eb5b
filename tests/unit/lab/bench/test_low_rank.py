from thinwire_lab.bench import low_rank


def test_costs_are_measured_in_copies_of_the_layer():
    rows = [
        low_rank.measure(text, shape, 0.01)
        for text, shape in (("rsvd(rank=2)", (40, 60)), ("tensor_train(rank=2)", (8, 6, 3, 3)))
    ]
    assert all(row.encode > 0 and row.decode > 0 and row.copy_ms > 0 and row.saving > 1 for row in rows)
    assert rows[0].saving == 2400 / 200
    lines = low_rank.table(rows).splitlines()
    assert len(lines) == 3 and len({len(line) for line in lines}) == 1
    assert "8×6×3×3" in lines[2]


def test_every_case_is_a_composition_that_saves():
    for text, shape in low_rank.CASES:
        part = low_rank.parse_compressor(text)
        spec = low_rank.TensorSpec("layer", shape)
        assert part.num_bytes(spec) < 4 * spec.numel or "error" in text
