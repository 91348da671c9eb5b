"""The tests of the C kernels once more, with a build that stops at the first wrong address or undefined step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from thinwire.kernels.native import build, runnable_builds

# smaller tensors will do, because what is wrong at 100,003 or 50,001 elements is wrong at 4,097
RUN = """
import sys
from pathlib import Path
import pytest
from thinwire.kernels import native
native.library_file = lambda name: Path(sys.argv[1]) / f"kernels_{name}.so"
CASES = "not 100003 and not 50001 and not deceives"
sys.exit(pytest.main(["-q", "-x", "-s", "-p", "no:cacheprovider", "-k", CASES, *sys.argv[2:]]))
"""


def sanitizer() -> Path | None:
    """The compiler's address sanitizer, which Python must have loaded before anything else."""
    cc = build.compiler()
    if cc is None:
        return None
    said = subprocess.run([cc, "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return Path(said).resolve() if Path(said).is_absolute() and Path(said).exists() else None


@pytest.mark.timeout(600)
@pytest.mark.skipif(sanitizer() is None, reason="no compiler with an address sanitizer here")
@pytest.mark.skipif(not runnable_builds(), reason="no C kernels were built here")
def test_no_kernel_leaves_its_memory_or_does_what_c_leaves_open(request, tmp_path):
    flags = ("-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer")
    try:
        build.build(tmp_path, flags, runnable_builds())
    except RuntimeError as error:
        pytest.skip(f"the compiler cannot build with sanitizers: {str(error).splitlines()[-1]}")
    environment = os.environ | {
        "LD_PRELOAD": str(sanitizer()),
        "ASAN_OPTIONS": "detect_leaks=0:alloc_dealloc_mismatch=0:new_delete_type_mismatch=0",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "OMP_NUM_THREADS": "1",
        "THINWIRE_SANITIZED": "1",  # one kind of numbers will do, see conftest.py
    }
    here = request.path.parent
    tests = sorted(map(str, (*here.glob("test_native*.py"), here / "test_allocation.py")))
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(tmp_path), *tests],
        env=environment,
        capture_output=True,
        text=True,
        timeout=580,
        cwd=request.config.rootpath,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
