"""Start a script that expects torchrun with mpirun or srun: set RANK, WORLD_SIZE and LOCAL_RANK from their variables.

mpirun -n 2 python examples/launch/ranks.py examples/ddp_resnet.py --synthetic
"""

import os
import sys

# torchrun's variables, and those of Open MPI, MPICH or Intel MPI, Slurm; the first that is set counts
NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"),
}


def torch_variables(environment):
    """Return the variables that torch.distributed reads; ranks on several hosts need MASTER_ADDR."""
    variables = {
        ours: environment[name] for ours, names in NAMES.items() for name in names[::-1] if name in environment
    }
    missing = {"RANK", "WORLD_SIZE"} - variables.keys()
    if missing:
        raise SystemExit(f"ranks.py: {' and '.join(sorted(missing))} unknown; start this with mpirun, mpiexec or srun")
    if variables.get("LOCAL_WORLD_SIZE") == variables["WORLD_SIZE"]:
        variables["MASTER_ADDR"] = "127.0.0.1"
    elif "MASTER_ADDR" not in environment:
        raise SystemExit("ranks.py: ranks on several hosts need MASTER_ADDR, the address of rank 0's host")
    return {"MASTER_PORT": "29500", **variables, **{k: v for k, v in environment.items() if k.startswith("MASTER_")}}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    # the script replaces this process, so that it gets the launcher's signals
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**os.environ, **torch_variables(os.environ)})
