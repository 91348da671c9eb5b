import os
import subprocess
import sys

from thinwire_lab.testbed import cleanup


def test_a_mark_tells_whether_its_owner_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(cleanup, "NAMESPACES", tmp_path)
    mine = cleanup.new_prefix()
    gone = f"thinwire-{os.getpid()}-{cleanup.start_ticks(os.getpid()) - 1}-abcdef"  # the same number, given again
    for name in (f"{mine}-0", f"{mine}-switch", f"{gone}-0", f"{gone}-1", "thinwire-odd", "somebody-elses-0"):
        (tmp_path / name).touch()
    assert cleanup.find_stale_prefixes() == [gone]
    assert cleanup.list_namespaces(mine) == [f"{mine}-0", f"{mine}-switch"]


def test_marks_of_one_process_differ():
    assert len({cleanup.new_prefix() for _ in range(20)}) == 20


def test_one_that_ended_is_not_alive_even_before_it_is_waited_for():
    ended = subprocess.Popen([sys.executable, "-c", "print()"], stdout=subprocess.PIPE)
    ended.stdout.read()
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert cleanup.start_ticks(ended.pid) is None
    ended.wait()
    assert cleanup.start_ticks(ended.pid) is None and cleanup.start_ticks(os.getpid()) is not None


def test_it_ends_the_groups_it_watches_and_not_those_it_forgot():
    watched, forgotten = (subprocess.Popen(["sleep", "60"], start_new_session=True) for _ in range(2))
    try:
        with cleanup.CleanupProcess(cleanup.new_prefix()) as own:
            own.watch(watched.pid)
            own.watch(forgotten.pid)
            own.forget(forgotten.pid)
        assert watched.wait(timeout=10) == -9
        assert forgotten.poll() is None
    finally:
        for process in (watched, forgotten):
            process.kill()
            process.wait()
