"""L-GreCo and its rivals in the laboratory: each trains, in several buckets, and sends less."""

from helpers.laboratory import run_here
from thinwire_lab.configuration.config import Experiment

METHODS = {
    "L-GreCo": "ef(adapt(topk(density=0.1), controller=lgreco(every=6, start=4)))",
    "Accordion": "ef(adapt(topk(density=0.1), controller=accordion(every=4)))",
    "both": "ef(adapt(topk(density=0.1), controller=lgreco(every=4, start=4, defaults_from=accordion(every=4))))",
    "k-means": "ef(adapt(topk(density=0.1), controller=kmeans(every=6, start=4)))",
    "by size": "ef(switch(topk(density=0.1), dense(), controller=by_size(min_numel=500)))",
    "global": "ef(flatten(topk(density=0.1)))",
    "threshold": "ef(threshold(count=100))",
    "falling": 'ef(scheduled(topk(density=0.1), start=0.25, end=0.05, steps=12, shape="linear"))',
    "local": "local(sync_every=4, composition=ef(flatten(topk(density=0.1))))",
}
CONFIG = {
    "name": "rivals", "task": {"name": "digits", "width": 16}, "steps": 20, "log_every": 5, "bucket_mb": 1e-3,
    "optimizer": {"lr": 0.3}, "groups": [{"workers": 3}], "methods": {"dense": "dense()", **METHODS},
}  # fmt: skip


def test_every_rival_learns_and_sends_less_than_dense():
    runs = {run["label"]: run for run in run_here(Experiment.from_dict(CONFIG))["runs"]}
    dense = runs.pop("dense")
    for label, run in runs.items():
        assert run["final"]["loss"] < 0.9 * run["curve"]["loss"][0], label
        assert run["final"]["wire_bytes"] < dense["final"]["wire_bytes"], label
