"""Federated rounds with 64 unreliable clients: in each round 20 % drop out and 5 % send malformed updates.

A logistic regression, clients with different examples, on a virtual clock, with the server and clients that
`thinwire serve` and `thinwire join` run over sockets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from thinwire.sync.optimizers import SGD, Adam
from thinwire.sync.robust import RobustMean

from ..configuration.run_plan import Job, RunPlan
from .simulated_clients import simulate

CASES: dict[str, dict[str, Any]] = {
    "FedAvg, dense": {"exchange": "dense()"},
    "FedAvg, EF(Top-k 10 %)": {},
    "both ways, EF21 down": {"down": "topk(density=0.2)"},
    "FedAvgM, EF(4 bits)": {"exchange": "ef(qsgd(bits=4))", "optimizer": SGD(lr=0.5, momentum=0.9)},
    "FedAdam, dense": {"exchange": "dense()", "optimizer": Adam(lr=0.05)},
    "median, dense": {"exchange": "dense()", "aggregate": RobustMean("median")},
}


def run_case(driver: object, argument: dict[str, Any], tell: Callable[[Any], None]) -> dict[str, Any]:
    del driver
    tell({"step": 0, "steps": argument["rounds"]})
    outcome = simulate(**argument["settings"], rounds=argument["rounds"], **CASES[argument["case"]])
    tell({"step": argument["rounds"], "steps": argument["rounds"]})
    return {"case": argument["case"]} | asdict(outcome)


def build_plan(full: bool = False, data: str | None = None) -> RunPlan:
    settings = {"clients": 64, "dropout": 0.2, "malformed": 0.05, "sampled": 64 if full else 32}
    rounds = 200 if full else 50
    head = {"title": "Federated rounds with unreliable clients", "description": (__doc__ or "").replace("\n", " "),
            "config": settings | {"rounds": rounds, "cases": list(CASES)}}  # fmt: skip
    jobs = [
        Job(f"case{at}", f"{__name__}:run_case", {"case": case, "settings": settings, "rounds": rounds}, case)
        for at, case in enumerate(CASES)
    ]
    return RunPlan("federated", head, jobs, lambda results: summarize(results, rounds))


def summarize(results: list[dict[str, Any]], rounds: int) -> dict[str, Any]:
    rows = [
        [r["case"], r["rounds"], r["stepped"], r["dropped"], r["malformed"], sum(r["refusals"].values()),
         r["loss_before"], r["loss_after"], round(100 * r["accuracy"], 1), r["bytes_up"], r["bytes_down"]]
        for r in results
    ]  # fmt: skip
    ends = f"all {rounds} rounds complete, and the model stays finite"
    complete = [r["case"] for r in results if r["rounds"] == rounds and r["finite"]]
    refused = all(sum(r["refusals"].values()) == r["malformed"] for r in results)
    return {
        "tables": [{
            "title": "Outcome of all rounds", "rows": rows,
            "note": "Bytes are of payloads, of all clients together.",
            "columns": ["method", "rounds", "changed the model", "drop-outs", "malformed", "refused", "loss before",
                        "loss after", "accuracy (%)", "bytes up", "bytes down"],
        }],
        "checks": [
            {"text": ends, "holds": len(complete) == len(results),
             "detail": f"{len(complete)} of {len(results)} methods"},
            {"text": "every malformed update is rejected, and no other", "holds": refused, "detail": ""},
        ],
    }  # fmt: skip
