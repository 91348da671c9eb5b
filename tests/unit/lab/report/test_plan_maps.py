"""The map of what layers were given."""

from thinwire_lab.reporting.plan_maps import family, plan_picture, setting, stretches


def made_plans():
    def plan(step, *texts):
        layers = {f"layer{i}": {"entry": t, "bytes": 100.0 * (i + 1), "saving": 40.0} for i, t in enumerate(texts)}
        return {"step": step, "layers": layers}

    return [
        plan(0, "topk(density=0.01)", "topk(density=0.01)"),
        plan(10, "topk(density=0.01)", "qsgd(bits=4)"),
        plan(20, "powersgd(rank=2)", "qsgd(bits=4)"),
    ]


def test_neighbours_that_are_alike_are_one_stretch():
    found = list(stretches(made_plans(), "layer1", 30.0))
    assert [(s.begin, s.end, s.entry) for s in found] == [(0, 10, "topk(density=0.01)"), (10, 30, "qsgd(bits=4)")]


def test_a_picture_names_operators_settings_and_families():
    picture = plan_picture("x", "hybrid <b>", [{"plans": made_plans(), "steps": 30}])
    assert picture.columns == ["layer", "from_step", "to_step", "entry", "expected_bytes", "expected_saving"]
    assert ["layer0", 20, 30, "powersgd(rank=2)", 100, 40] in picture.rows
    for word in ("powersgd", "qsgd", "topk", "40× less than dense", "hybrid &lt;b&gt;"):
        assert word in picture.svg


def test_without_plans_there_is_no_picture():
    assert plan_picture("x", "dense", [{"plans": []}, {}]) is None


def test_many_plans_are_thinned():
    plans = [{**made_plans()[at % 3], "step": at} for at in range(500)]
    assert len(list(stretches(plans, "layer0", 500.0))) <= 60


def test_entries_are_read_as_family_and_setting():
    assert (family("topk(density=0.01)"), setting("topk(density=0.01)")) == ("topk", "0.01")
    assert (family("dense()"), setting("dense()")) == ("dense", "dense")
