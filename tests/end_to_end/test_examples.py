"""Every example runs as its README says, and prints what makes sense."""

import os
import re
import runpy
import socket
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.laboratory import run_here
from thinwire.drivers.processes import loopback_device
from thinwire_lab.running.build_jobs import build_run_plan, read_experiment

EXAMPLES = Path(__file__).parents[2] / "examples"
ENVIRONMENT = {
    **os.environ, "PYTHONFAULTHANDLER": "1", "GLOO_SOCKET_IFNAME": loopback_device(), "OMP_NUM_THREADS": "1",
}  # fmt: skip
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2)
RESNET = ("ddp_resnet.py", "--synthetic", "--steps", 3, "--batch", 2, "--width", 8)
GPT = ("ddp_gpt.py", "--steps", 3, "--batch", 2, "--width", 48, "--layers", 2, "--context", 32)


def run(*arguments):
    """What an example prints; if it fails, its own error text and that of every rank."""
    with tempfile.TemporaryDirectory() as logs:
        if arguments[: len(TORCHRUN)] == TORCHRUN:  # each rank's stderr goes into a file of its own
            arguments = (*TORCHRUN, "--log-dir", logs, "--redirects", "2", *arguments[len(TORCHRUN) :])
        done = subprocess.run(
            [sys.executable, *map(str, arguments)], env=ENVIRONMENT, capture_output=True, text=True, timeout=90
        )
        ranks = [f"{path.parent.name}: {path.read_text()[-3000:]}" for path in sorted(Path(logs).rglob("stderr.log"))]
    assert done.returncode == 0, "\n".join([done.stderr[-2000:], *ranks])
    return done.stdout


def numbers(line):
    return [float(number) for number in re.findall(r"\b\d[\d.]*(?:e-?\d+)?\b", line)]


def saving(report):
    return float(re.search(r"saving +([\d.]+)", report)[1])


def test_topk_with_feedback_solves_the_toy_problem_with_a_fraction_of_the_bytes():
    lines = run(EXAMPLES / "lockstep.py").splitlines()
    (dense,) = [line for line in lines if line.startswith("dense()")]
    (sparse,) = [line for line in lines if line.startswith("ef(topk")]
    dense_payload, dense_wire, dense_error = numbers(dense)
    _, sparse_payload, sparse_wire, sparse_error = numbers(sparse)  # the first is the density
    assert dense_error < 1e-3 and sparse_error < 1e-3
    assert sparse_payload < dense_payload / 10
    assert sparse_wire < dense_wire / 5  # a gather sends to 3 others, an all-reduce 1.5 times the tensor
    assert sparse_wire > sparse_payload


def test_a_plain_loop_learns_under_torchrun_and_sends_little():
    first, last, sent = run(*TORCHRUN, EXAMPLES / "torchrun.py").splitlines()
    assert numbers(last)[1] < 0.1 * numbers(first)[1]
    payload, dense, wire = numbers(sent)
    assert 0 < payload < dense / 10
    assert payload < wire < 1.2 * payload  # to one other rank: the payload once, and headers


def test_two_lines_in_a_ddp_script_learn_and_send_little():
    first, last, *report = run(*TORCHRUN, EXAMPLES / "ddp_minimal.py").splitlines()
    assert numbers(last)[1] < 0.1 * numbers(first)[1]
    assert saving("\n".join(report)) > 3


def test_workers_that_talk_every_sixteen_steps_learn_and_send_little():
    first, last, *report = run(*TORCHRUN, EXAMPLES / "local.py").splitlines()
    assert numbers(last)[1] < 0.1 * numbers(first)[1]
    assert saving("\n".join(report)) > 20


def test_a_server_and_its_workers_train_a_model_of_their_own():
    first, last = run(EXAMPLES / "serve.py").splitlines()
    assert numbers(last)[0] < 0.2 * numbers(first)[0]
    assert "'updates': 300" in last and "'lost': []" in last


def test_a_resnet_trains_through_the_wire_and_as_plain_ddp():
    wired, plain = (
        run(*TORCHRUN, EXAMPLES / RESNET[0], *RESNET[1:], *more) for more in ((), ("--composition", "none"))
    )
    assert saving(wired) > 5 and "3 steps" in wired
    assert "plain DDP sends" in plain and "saving" not in plain
    losses = [re.search("step    0  loss (.*)", said)[1] for said in (wired, plain)]
    assert losses[0] == losses[1]  # same weights, same batch: only what is sent differs


def test_a_gpt_trains_with_a_composition_for_each_pattern():
    said = run(*TORCHRUN, EXAMPLES / GPT[0], *GPT[1:])
    assert saving(said) > 5 and "the pages of docs/" in said


@pytest.fixture
def read(monkeypatch):
    """ddp_resnet.py's own reader."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return runpy.run_path(str(EXAMPLES / "ddp_resnet.py"))["load_cifar10"]


@pytest.mark.parametrize("inside", (".", "cifar-10-batches-bin"))
def test_pictures_are_read_from_the_binary_version(tmp_path, inside, read):
    (tmp_path / inside).mkdir(exist_ok=True)
    for batch in (1, 2):
        rows = [bytes([label]) + bytes([label + batch]) * 3072 for label in (7, 3)]
        (tmp_path / inside / f"data_batch_{batch}.bin").write_bytes(b"".join(rows))
    images, labels = read(tmp_path)
    assert images.shape == (4, 3, 32, 32) and labels.tolist() == [7, 3, 7, 3]
    assert images[:, 1, 5, 9].tolist() == [8, 4, 9, 5]


def test_a_folder_without_pictures_is_an_error_and_not_another_data_set(tmp_path, read):
    with pytest.raises(SystemExit, match=r"no data_batch_\*\.bin"):
        read(tmp_path)


def test_the_laboratorys_example_shows_that_topk_needs_a_memory():
    """Its lockstep runs, in this process; tests of the laboratory ask the same of real processes."""
    whole = read_experiment(EXAMPLES / "lab.toml")
    assert [job.ranks for job in build_run_plan(whole).jobs] == 6 * [1] + 6 * [2]
    runs = run_here(replace(whole, groups=whole.groups[:1]))["runs"]
    for seed in whole.seeds:
        dense, bare, remembered = (run["final"] for run in runs if run["seed"] == seed)
        assert abs(remembered["accuracy"] - dense["accuracy"]) < 0.01 < dense["accuracy"] - bare["accuracy"]
        assert remembered["wire_bytes"] < dense["wire_bytes"] / 8


RANKS = runpy.run_path(str(EXAMPLES / "launch" / "ranks.py"))


def told_by(launcher, rank, size):
    """What a launcher tells the processes of one host."""
    names = {
        "Open MPI": [f"OMPI_COMM_WORLD_{name}" for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")],
        "MPICH": ["PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"],
        "Slurm": ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"],
    }
    return dict(zip(names[launcher], map(str, (rank, size, rank, size)), strict=True))


@pytest.mark.parametrize("launcher", ("Open MPI", "MPICH", "Slurm"))
def test_ranks_of_every_launcher_are_found(launcher):
    told = RANKS["torch_variables"](told_by(launcher, 1, 2))
    assert told == {
        "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
    }  # fmt: skip


def test_mpirun_inside_a_slurm_job_counts_and_a_given_address_stays():
    given = {"MASTER_ADDR": "node0", "MASTER_PORT": "4000"}
    told = RANKS["torch_variables"](told_by("Slurm", 0, 1) | told_by("Open MPI", 3, 4) | given)
    assert (told["RANK"], told["WORLD_SIZE"], told["MASTER_ADDR"], told["MASTER_PORT"]) == ("3", "4", "node0", "4000")


def test_ranks_say_what_is_missing():
    with pytest.raises(SystemExit, match="mpirun, mpiexec or srun"):
        RANKS["torch_variables"]({})
    with pytest.raises(SystemExit, match="MASTER_ADDR"):
        RANKS["torch_variables"](told_by("MPICH", 0, 4) | {"MPI_LOCALNRANKS": "2"})


def test_a_script_runs_as_two_processes_of_mpirun():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    command = [sys.executable, EXAMPLES / "launch" / "ranks.py", EXAMPLES / "ddp_minimal.py"]
    inherited = {k: v for k, v in ENVIRONMENT.items() if not k.startswith(("OMPI_", "PMI_", "MPI_", "SLURM_"))}
    processes = [
        subprocess.Popen(
            command,
            env=inherited | told_by("Open MPI", rank, 2) | {"MASTER_PORT": port},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    said = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert "rank 0 of 2, 100 steps" in said[0] and not said[1]


@pytest.mark.parametrize("script", sorted(path.name for kind in ("*.py", "*.toml") for path in EXAMPLES.glob(kind)))
def test_every_example_is_in_the_readme(script):
    assert f"({script})" in (EXAMPLES / "README.md").read_text()
