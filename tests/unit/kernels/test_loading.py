"""Which kernels serve: by the processor, by what was built, by what the user says."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from thinwire.kernels import codes, dispatch, native
from thinwire.kernels.native import build

BUILT = pytest.mark.skipif(not native.runnable_builds(), reason="no C kernels were built here")


@pytest.fixture
def afresh():
    """Whatever a test chooses is forgotten after it."""
    yield
    native._choose_library.cache_clear()
    native.load.cache_clear()


@pytest.fixture
def choose(monkeypatch, afresh):
    def chosen(wanted):
        monkeypatch.setenv(native.VARIABLE, wanted)
        native._choose_library.cache_clear()
        return native.describe_kernels()

    return chosen


def test_the_user_may_ask_for_the_reference(choose):
    assert choose("reference") == "torch reference (THINWIRE_KERNELS=reference)" and native.library() is None
    assert torch.equal(dispatch.largest_magnitudes(torch.randn(50), 50), torch.arange(50))


@BUILT
def test_the_user_may_ask_for_any_build_that_runs_here(choose):
    for name in native.runnable_builds():
        assert choose(name) == f"C, {name}" and native.library() is native.load(name)
    assert choose("") == f"C, {native.runnable_builds()[0]}"


def test_a_build_that_does_not_run_here_is_refused_with_those_that_do(choose):
    with pytest.raises(
        ValueError, match="THINWIRE_KERNELS must be one of reference, avx512, avx2, baseline, got 'avx9000'"
    ):
        choose("avx9000")


def test_without_a_build_torch_serves_and_says_why(choose, monkeypatch, tmp_path):
    monkeypatch.setattr(native, "library_file", lambda name: tmp_path / name)
    assert choose("") == "torch reference (no C kernels: the installation found no compiler)"
    numbers = torch.randn(1000)
    assert torch.equal(dispatch.sign_encode(numbers)[0], codes.sign_encode(numbers)[0])


def test_only_what_the_processor_has_is_loaded(monkeypatch):
    monkeypatch.setattr(native, "processor_flags", lambda: frozenset({"sse2"}))
    assert native.runnable_builds() in (["baseline"], [])


@BUILT
def test_a_build_of_another_text_is_not_used(choose, monkeypatch):
    native.load.cache_clear()
    monkeypatch.setattr(native, "source_checksum", lambda: 1)
    assert "was compiled from another version; reinstall thinwire" in choose("")
    assert native.library() is None


@BUILT
def test_a_library_that_does_not_load_is_one_warning_with_reason_and_remedy(choose, monkeypatch, tmp_path, caplog):
    native.load.cache_clear()
    monkeypatch.setattr(native, "library_file", lambda name: tmp_path / f"kernels_{name}.so")
    (tmp_path / f"kernels_{build.supported_builds()[-1]}.so").write_bytes(b"no library")
    assert "the C kernels do not load" in choose("")
    assert native.library() is None and native.library() is None
    (record,) = caplog.records
    assert (record.name, record.levelname) == ("thinwire.kernels.native", "WARNING")
    for part in ("kernels_", "torch expressions are used", "Reinstall thinwire, or run: python ", "build.py"):
        assert part in record.getMessage()


@BUILT
def test_a_library_without_one_of_our_functions_is_a_warning_too(choose, monkeypatch, caplog):
    def lacking(opened):
        raise AttributeError("undefined symbol: tw_sign")

    native.load.cache_clear()
    monkeypatch.setattr(native, "declare", lacking)
    assert "undefined symbol: tw_sign" in choose("") and len(caplog.records) == 1


def test_the_reference_that_was_asked_for_is_no_warning(choose, caplog):
    choose("reference")
    assert not caplog.records


def test_a_library_that_was_never_built_is_no_warning(choose, monkeypatch, tmp_path, caplog):
    monkeypatch.setattr(native, "library_file", lambda name: tmp_path / name)
    choose("")
    assert not caplog.records


@pytest.mark.skipif(build.compiler() is None, reason="no C compiler here")
def test_all_builds_of_this_kind_of_processor_compile_without_a_warning(tmp_path):
    made = build.build(tmp_path, ("-Werror", "-O1"))
    assert [path.name for path in made] == [f"kernels_{name}.so" for name in build.supported_builds()]
    assert sorted(tmp_path.iterdir()) == sorted(made)


def test_without_a_compiler_the_build_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(RuntimeError, match="no C compiler"):
        build.build(tmp_path)


def test_what_a_compiler_complains_of_is_passed_on(monkeypatch, tmp_path):
    false = shutil.which("false")
    assert false is not None
    monkeypatch.setenv("CC", false)
    with pytest.raises(RuntimeError, match=false):
        build.build(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_build_needs_nothing_but_python():
    """It runs before torch is installed."""
    code = (
        "import sys, runpy\nrunpy.run_path(sys.argv[1])\nassert not {'torch', 'numpy', 'thinwire'} & set(sys.modules)"
    )
    script = Path(build.__file__)
    subprocess.run([sys.executable, "-S", "-c", code, str(script)], check=True, timeout=60, env=dict(os.environ))
