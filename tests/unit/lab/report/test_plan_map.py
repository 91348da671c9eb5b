"""The map of a controller's plans."""

from thinwire_lab.reporting.plan_map import draw_plan_map, main_setting, part_name, split_segments


def made_plans():
    def plan(step, *texts):
        layers = {f"layer{i}": {"option": t, "bytes": 100.0 * (i + 1), "saving": 40.0} for i, t in enumerate(texts)}
        return {"step": step, "layers": layers}

    return [
        plan(0, "topk(density=0.01)", "topk(density=0.01)"),
        plan(10, "topk(density=0.01)", "qsgd(bits=4)"),
        plan(20, "powersgd(rank=2)", "qsgd(bits=4)"),
    ]


def test_equal_consecutive_plans_are_one_segment():
    found = list(split_segments(made_plans(), "layer1", 30.0))
    assert [(s.begin, s.end, s.option) for s in found] == [(0, 10, "topk(density=0.01)"), (10, 30, "qsgd(bits=4)")]


def test_a_picture_names_parts_and_settings():
    picture = draw_plan_map("x", "hybrid <b>", [{"plans": made_plans(), "steps": 30}])
    assert picture.columns == ["layer", "from_step", "to_step", "option", "expected_bytes", "expected_saving"]
    assert ["layer0", 20, 30, "powersgd(rank=2)", 100, 40] in picture.rows
    for word in ("powersgd", "qsgd", "topk", "40× less than dense", "hybrid &lt;b&gt;"):
        assert word in picture.svg


def test_without_plans_there_is_no_picture():
    assert draw_plan_map("x", "dense", [{"plans": []}, {}]) is None


def test_many_plans_are_thinned():
    plans = [{**made_plans()[at % 3], "step": at} for at in range(500)]
    assert len(list(split_segments(plans, "layer0", 500.0))) <= 60


def test_an_option_is_read_as_part_and_setting():
    assert (part_name("topk(density=0.01)"), main_setting("topk(density=0.01)")) == ("topk", "0.01")
    assert (part_name("dense()"), main_setting("dense()")) == ("dense", "dense")
