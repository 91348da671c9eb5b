"""Start a script that expects torchrun under mpirun or srun: their ranks become RANK, WORLD_SIZE, LOCAL_RANK.

mpirun -n 2 python examples/launch/ranks.py examples/ddp_resnet.py --synthetic
"""

import os
import sys

# what torchrun would tell, and what tells it under Open MPI, MPICH or Intel MPI, Slurm: the first that is set counts
NAMES = {
    "RANK": ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"),
    "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"),
    "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"),
    "LOCAL_WORLD_SIZE": ("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "SLURM_NTASKS_PER_NODE"),
}


def for_torch(environment):
    """What torch.distributed reads, from what a launcher set; ranks on several hosts need MASTER_ADDR."""
    told = {ours: environment[name] for ours, names in NAMES.items() for name in names[::-1] if name in environment}
    missing = {"RANK", "WORLD_SIZE"} - told.keys()
    if missing:
        raise SystemExit(f"ranks.py: no {' and '.join(sorted(missing))} here; start this with mpirun, mpiexec or srun")
    if told.get("LOCAL_WORLD_SIZE") == told["WORLD_SIZE"]:
        told["MASTER_ADDR"] = "127.0.0.1"
    elif "MASTER_ADDR" not in environment:
        raise SystemExit("ranks.py: ranks on several hosts meet at rank 0's; give its address as MASTER_ADDR")
    return {"MASTER_PORT": "29500", **told, **{k: v for k, v in environment.items() if k.startswith("MASTER_")}}


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    # the script takes this process over, so signals of the launcher reach it
    os.execve(sys.executable, [sys.executable, *sys.argv[1:]], {**os.environ, **for_torch(os.environ)})
