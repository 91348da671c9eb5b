"""Local-SGD with gossip, DiLoCo and the federated run: their configurations are what they say, and their tables read the runs."""

import pytest

from thinwire.sync import parse_sync
from thinwire_lab.configuration.selection import Selection
from thinwire_lab.published import diloco, federated, local_sgd_gossip
from thinwire_lab.published.claims import RangeClaim
from thinwire_lab.published.local_sgd_gossip import experiment as configurations
from thinwire_lab.published.local_sgd_gossip import tables
from thinwire_lab.sources import load_run_plan
from thinwire_lab.tables import ConfigError


def run(group, label, accuracy, driver="lockstep", **times):
    return {
        "group": group, "label": label, "driver": driver, "steps": 10, "times": times,
        "final": {"accuracy": accuracy, "wire_bytes": 1000, "loss": 1.0}, "best": {"loss": 0.9},
    }  # fmt: skip


def test_the_ten_configurations_are_the_published_ones():
    methods = [parse_sync(method.composition) for method in configurations.PUBLISHED]
    periods = [getattr(method.policy, "period", 1) for method in methods]
    assert periods == [1, 1, 1, 4, 4, 4, 16, 16, 16, 32]
    assert [method.overlap for method in methods] == [n in (1, 4, 7, 10) for n in range(1, 11)]
    assert [method.payload for method in methods[:3]] == ["weights", "gradients", "gradients"]


def test_accuracy_is_recorded_once_an_epoch_and_times_only_at_the_end():
    experiment = local_sgd_gossip.build_experiment()
    crowds = [group for group in experiment.groups if group.driver == "lockstep"]
    assert [group.workers for group in crowds] == [16, 32, 60] * 2
    assert [experiment.task_of(group).name for group in crowds] == ["cifar10"] * 3 + ["cifar100"] * 3
    assert [group.log_every for group in crowds[:3]] == [25, 12, 6]
    assert len(local_sgd_gossip.build_experiment(thin=False).groups) == len(experiment.groups) - 1
    assert type(experiment).from_dict(experiment.to_dict()) == experiment


def test_findings_hold_or_not_as_measured():
    labels = [method.label for method in configurations.PUBLISHED + configurations.WITH_ERROR_FEEDBACK]
    runs = [run("CIFAR-10, 16 workers", label, 0.6 if label.startswith("1:") else 0.5) for label in labels]
    for group, sending in (("4 processes, fast link", 0.01), ("4 processes, 50mbit", 1.0)):
        for place, method in enumerate(configurations.PUBLISHED):
            times = {"compute": 1.0, "encode": 0.1, "communication": sending / (1 + place), "waiting": 0.5}
            runs.append(run(group, method.label, 0.5, "processes", **times))
    table = tables.build_findings_table(runs)
    found = {row[0]: row[1:] for row in table["rows"]}
    assert found["Local-SGD loses 2 to 4 points at p = 4"] == ["no: above the range", "p = 4 10.00"]
    assert found["and almost nothing at p > 1 (within 1 point)"][0] == "yes"
    assert found["Gossip communicates 2 to 5 times faster (thin link)"] == [
        "1 of 3: below the range", "p = 1 2.00; p = 4 1.25; p = 16 1.14",
    ]  # fmt: skip
    assert found["Waiting can exceed computing (with encoding)"][0] == "no"
    without = tables.build_findings_table([r for r in runs if "mbit" not in r["group"]])
    assert len(without["rows"]) == len(table["rows"]) - 4
    assert tables.build_configuration_table(runs)["rows"][0][:3] == ["1: p = 1", 60.0, "110.0 / 1.0 / 50.0"]


def crowd(group, **accuracy):
    """All ten in one group: 30 % unless said otherwise, by number as n1=..., n4=..."""
    numbers = ((method.label.partition(":")[0], method.label) for method in configurations.PUBLISHED)
    return [run(group, label, accuracy.get(f"n{number}", 0.3)) for number, label in numbers]


def test_groups_at_chance_level_have_no_part_in_the_verdicts():
    runs = crowd("CIFAR-10, 16 workers", n4=0.275, n9=0.2) + crowd("CIFAR-100, 16 workers", n1=0.046, n4=0.05)
    table = tables.build_findings_table(runs)
    found = {row[0]: row[1:] for row in table["rows"]}
    assert found["Local-SGD loses 2 to 4 points at p = 4"] == ["yes", "p = 4 2.50"]
    assert found["No. 9 loses 1 to 3 points"] == ["no: above the range", "no. 9 10.00"]
    assert "chance: CIFAR-100, 16 workers" in table["note"]
    assert tables.build_findings_table(crowd("CIFAR-100, 16 workers", n1=0.046))["rows"] == []


def test_some_of_the_ten_make_a_table_and_no_findings():
    runs = [r for r in crowd("CIFAR-10, 16 workers") if r["label"][:2] in ("1:", "4:")]
    (table,) = local_sgd_gossip.summarize(runs)["tables"]
    assert table["title"] == "All configurations"


@pytest.mark.parametrize(
    ("figures", "verdict"),
    [
        ({"a": 2.0, "b": 3.0}, "yes"),
        ({"a": 5.94}, "no: above the range"),
        ({"a": 1.06, "b": 1.12}, "no: below the range"),
        ({"a": 1.0, "b": 2.5, "c": 9.0}, "1 of 3: below and above the range"),
        ({"a": float("nan")}, "no: not a number"),
    ],
)
def test_a_range_is_left_on_both_sides(figures, verdict):
    assert RangeClaim("2 to 3", 2, 3, figures).verdict == verdict


def test_some_methods_and_groups_are_run_by_themselves():
    some = Selection(("1", "3 with EF"), ("CIFAR-10,", "fast link")).apply_to(local_sgd_gossip.build_experiment())
    assert [method.label for method in some.methods] == ["1: p = 1", "3 with EF"]
    titles = [(group.title, [m.label for m in some.methods_of(group)]) for group in some.groups]
    assert titles[0] == ("CIFAR-10, 16 workers", ["1: p = 1", "3 with EF"]) and len(titles) == 4
    assert titles[-1] == ("4 processes, fast link", ["1: p = 1"])
    assert Selection().apply_to(local_sgd_gossip.build_experiment()) == local_sgd_gossip.build_experiment()
    for wrong, words in (
        (Selection(("11",)), "--methods: the experiment has no '11'"),
        (Selection((), ("MNIST",)), "--groups: the experiment has no 'MNIST'"),
    ):
        with pytest.raises(ConfigError, match=words):
            wrong.apply_to(local_sgd_gossip.build_experiment())
    with pytest.raises(ConfigError, match="no method of"):
        Selection(("3 with EF",), ("CIFAR-100",)).apply_to(local_sgd_gossip.build_experiment())
    with pytest.raises(ConfigError, match="impk-wikitext2 runs as a whole"):
        load_run_plan("impk-wikitext2", selection=Selection(("TopK",)))


def test_diloco_is_one_line_a_method():
    texts = [parse_sync(method.composition) for method in diloco.METHODS]
    assert {method.policy.period for method in texts[2:]} == {16}
    rows = diloco.summarize([run("4 workers", method.label, None) for method in diloco.METHODS])["tables"][0]["rows"]
    assert rows[0] == ["AdamW, every step", 1.0, 0.9, 0.001, 1.0]


@pytest.mark.parametrize("case", ["FedAvg, EF(Top-k 10 %)", "both ways, EF21 down", "FedAdam, dense"])
def test_a_federated_run_completes_though_clients_fail(case):
    crowd = {"clients": 16, "dropout": 0.2, "malformed": 0.1, "sampled": 8}
    told = []
    result = federated.run_case(None, {"case": case, "settings": crowd, "rounds": 6}, told.append)
    shown = federated.summarize([result], 6)
    assert all(check["holds"] for check in shown["checks"]) and result["malformed"] > 0 and told
