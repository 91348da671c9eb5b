"""layerwise-adaptive: its configurations are what they say, its tables read the runs, and its own measurements measure."""

from dataclasses import replace

import pytest

from helpers import tiny_data
from helpers.cases import draw
from thinwire_lab.data.folders import DataError, read_folders
from thinwire_lab.published.layerwise_adaptive import build_experiment, step_times, tables, topk_overlap
from thinwire_lab.published.layerwise_adaptive import experiment as layerwise_adaptive
from thinwire_lab.running.build_jobs import build_run_plan


def run(group, label, quality, wire_bytes, seed=1):
    measure = "perplexity" if group.startswith("WikiText") else "loss"
    return {
        "group": group, "label": label, "seed": seed, "steps": 10, "times": {"encode": 1.0, "compute": 3.0},
        "final": {measure: quality, "accuracy": 0.5, "wire_bytes": wire_bytes},
    }  # fmt: skip


def test_every_method_is_in_both_tasks_and_references_are_on_one():
    experiment = build_experiment()
    images, text, curve = experiment.groups
    assert images.methods == text.methods and not set(curve.methods) & set(images.methods)
    assert {m.label for m in experiment.methods} == {*images.methods, *curve.methods}
    assert experiment.task_of(text).name == "wikitext2" and "model" not in experiment.task_of(text).settings
    assert experiment.optimizer_of(text).name == "adamw" and experiment.optimizer_of(images).name == "sgd"
    assert type(experiment).from_dict(experiment.to_dict()) == experiment
    assert len(build_experiment(full=True).methods) == len(experiment.methods)


def test_the_full_size_says_which_large_sets_it_did_not_find(tmp_path):
    small, full = build_experiment(data=str(tmp_path)), build_experiment(full=True, data=str(tmp_path))
    assert small == build_experiment() and "image folders" not in small.description
    assert [group.title for group in full.groups] == [group.title for group in small.groups]
    assert full.description.endswith(f"Left out: imagenet and wikitext-103, not found in {tmp_path}.")


def test_the_full_size_takes_the_large_sets_that_are_there(tmp_path):
    pytest.importorskip("PIL", reason="image folders need the extra `images`")
    tiny_data.write_images(tmp_path)
    tiny_data.write_wikitext(tmp_path, name="wikitext-103", lines=4000)
    full = build_experiment(full=True, data=str(tmp_path))
    *before, images, text = full.groups
    assert before == list(build_experiment(full=True, data=str(tmp_path / "none")).groups)
    assert "Left out" not in full.description and type(full).from_dict(full.to_dict()) == full
    assert images.methods == text.methods == before[0].methods
    assert (images.title, full.task_of(images).settings["model"]) == ("ImageNet folders", "resnet50")
    assert (text.title, full.task_of(text).settings["size"]) == ("WikiText-103", "gpt2")
    assert full.optimizer_of(images).momentum == 0.9 and full.optimizer_of(text).name == "adamw"
    large = replace(full, groups=(images, text), task=full.task_of(images))  # the others want all of CIFAR-100
    plan = build_run_plan(large, str(tmp_path))
    assert len(plan.jobs) == 2 * 3 * len(images.methods) and plan.head["task"]["classes"] == 3
    (tmp_path / "imagenet" / "val").rename(tmp_path / "imagenet" / "test")
    read_folders.cache_clear()
    with pytest.raises(DataError, match=r"imagenet has no folder val"):
        build_experiment(full=True, data=str(tmp_path))


def test_tables_have_room_for_more_groups():
    titles = ("CIFAR-100", "WikiText-2", "ImageNet folders", "WikiText-103")
    labels = build_experiment().groups[0].methods
    runs = [run(title, label, 3.0, 100 if label == "dense" else 10) for title in titles for label in labels]
    shown = tables.summarize(runs)
    assert [table["title"].partition(":")[0] for table in shown["tables"][:4]] == list(titles)
    assert [table["columns"][2] for table in shown["tables"][:4]] == ["loss", "perplexity"] * 2
    claims = [row[0] for row in shown["tables"][4]["rows"]]
    assert len(claims) == 4 * (len(tables.FAMILIES) + 2) and any(c.startswith("WikiText-103") for c in claims)
    assert sum(len(line["x"]) for line in shown["figures"][0]["curves"]) == 2  # of CIFAR-100 alone


def test_each_family_has_a_plan_from_the_very_reference_it_is_compared_with():
    texts = {method.label: method.composition for method in layerwise_adaptive.build_methods(100)}
    for family, part in tables.FAMILIES.items():
        assert (
            part in texts[family]
            and f"adapt({part}, controller=lgreco(every=100, start=50, " in texts[f"L-GreCo {family}"]
        )


def test_tables_tell_what_runs_show():
    good = {"dense": (2.0, 1000), "TopK": (2.004, 100), "L-GreCo TopK": (2.008, 50), "PowerSGD": (2.4, 40)}
    labels = build_experiment().groups[0].methods
    runs = [run("CIFAR-100", label, *good.get(label, (2.012, 80))) for label in labels]
    runs += [run("CIFAR-100", label, *good.get(label, (2.012, 80)), seed=2) for label in labels]
    runs += [
        run("WikiText-2", label, 100.0 if label == "dense" else 120.0, 10 if label != "dense" else 100)
        for label in labels
    ]
    runs += [run("CIFAR-100, other defaults", label, 2.1, 20) for label in build_experiment().groups[2].methods]
    steps = [
        {
            "workers": w,
            "rows": {"no exchange": {"seconds": 0.1}, "TopK": {"seconds": 0.2, "bytes": 3e3, "coding": 0.05}},
        }
        for w in (1, 2)
    ]
    shown = tables.summarize(
        runs,
        [*steps, {"rows": [topk_overlap.compute_overlap([draw("gaussian", (40,), seed=1)], 0.1) | {"density": 0.1}]}],
    )
    images, text, verdicts, buckets, _, times, costs, overlap = shown["tables"]
    assert buckets["rows"] == [] and costs["rows"] == []
    rows = {row[0]: row for row in images["rows"]}
    assert rows["TopK"][1:] == [50.0, 2.004, 0.0, pytest.approx(0.2), 1e-4, 10.0, "yes", 0.25]
    assert rows["PowerSGD"][7] == "no" and text["rows"][1][4] == pytest.approx(20)
    found = {row[0]: row[1] for row in verdicts["rows"]}
    assert found["CIFAR-100: L-GreCo TopK sends less than TopK at the same quality"] == "yes"
    assert found["CIFAR-100: a mixture sends less than the best single family, within 1 % of dense"] == "no"
    assert times["rows"][1] == ["TopK", 200.0, 0.5, 200.0, 0.5, 3.0, 0.25]
    assert overlap["rows"][0][0] == 0.1
    lines = {line["label"]: line for line in shown["figures"][0]["curves"]}
    assert len(lines["L-GreCo"]["x"]) == len(lines["one setting for all layers"]["x"]) == 4


def test_global_and_layerwise_top_k_agree_on_one_layer_and_starve_quiet_ones():
    one = topk_overlap.compute_overlap([draw("gaussian", (50, 20), seed=3)], 0.05)
    assert one["both"] == 1 and one["starved"] == 0 and one["energy_global"] == one["energy_layers"]
    loud, quiet = draw("gaussian", (1000,), seed=1) * 100, draw("gaussian", (1000,), seed=2)
    two = topk_overlap.compute_overlap([loud, quiet], 0.01)
    assert two["starved"] == 0.5 and two["energy_global"] > two["energy_layers"]


def test_a_step_is_as_long_as_on_the_slowest_rank():
    ranks = [{"workers": 2, "rows": {"TopK": {"seconds": s, "bytes": 5.0}}} for s in (0.1, 0.3)]
    assert step_times.merge_ranks(ranks)["rows"]["TopK"]["seconds"] == 0.3
