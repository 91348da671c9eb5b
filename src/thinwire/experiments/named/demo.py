"""The main job in small: what each way of sending costs, and what it does to the training."""

from __future__ import annotations

from ..config import Experiment, Group, Method

DEMO = Experiment(
    name="demo",
    title="Logistic regression over a thin wire",
    about=(
        "Mushrooms (8124 × 112), edible or not, split over workers that see one label each in the first table. "
        "All methods take the same number of steps of the same length; what differs is what they send."
    ),
    groups=(
        Group("10 label-sorted workers, lockstep", 10, "label-sorted"),
        Group("2 workers, lockstep", 2),
        Group("2 workers, real processes", 2, driver="processes"),
    ),
    methods=(
        Method("dense", "dense()"),
        Method("Random-k 25 %", "randomk(density=0.25)"),
        Method("Top-k 10 %", "topk(density=0.1)"),
        Method("EF(Top-k 10 %)", "ef(topk(density=0.1))"),
        Method("QSGD 4 bits", "qsgd(bits=4)"),
        Method("EF(sign)", "ef(sign())"),
    ),
    steps=400,
)
