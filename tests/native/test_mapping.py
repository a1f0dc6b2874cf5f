"""Mapped files that are cut under their readers, in processes of their own: a failure would end the test run by SIGBUS."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kappamq.native.mapping import MappedFile

pytest.importorskip("kappamq.native._kernel", reason="no compiled kernel: nothing survives SIGBUS")

PRELUDE = """
import faulthandler, mmap, os, signal, sys, threading, zlib
from kappamq.native import map_file
path = sys.argv[1]
fd = os.open(path, os.O_RDWR | os.O_CREAT)
os.pwrite(fd, b"x" * (1 << 20), 0)
"""


def run(tmp_path: Path, text: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", PRELUDE + text, str(tmp_path / "file")],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_a_cut_file_reads_as_zeros_and_tells_where(tmp_path: Path) -> None:
    done = run(tmp_path, """
mapped = map_file(fd, 1 << 20)
view = memoryview(mapped)
assert mapped.lost() == [] and not mapped.is_lost(0, 1 << 20)
os.ftruncate(fd, 300_000)
assert bytes(view[:300_000]) == b"x" * 300_000
assert mapped.lost_count == 0  # the page that the end lies in is still there
assert bytes(view[500_000:510_000]) == bytes(10_000)
page = mmap.PAGESIZE
assert mapped.lost() == [(500_000 // page * page, (510_000 + page - 1) // page * page)], mapped.lost()
assert mapped.is_lost(509_999, 1) and mapped.is_lost(0, 1 << 20) and not mapped.is_lost(0, 1000)
assert mapped.lost()[0][1] == 1 << 20, mapped.lost()
os.ftruncate(fd, 1 << 20)
os.pwrite(fd, b"back", 500_000)
for stretch in mapped.lost():
    mapped.restore(*stretch, fd)
assert mapped.lost() == [] and bytes(view[500_000:500_004]) == b"back"
os.ftruncate(fd, 0)  # and it may be lost once more
assert zlib.crc32(view) == zlib.crc32(bytes(1 << 20)) and mapped.lost() == [(0, 1 << 20)]
view.release()
mapped.close()
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_all_threads_survive_and_each_page_counts_once(tmp_path: Path) -> None:
    done = run(tmp_path, """
faulthandler.enable()
mapped = map_file(fd, 1 << 20)
os.ftruncate(fd, 0)
sums = []
threads = [threading.Thread(target=lambda: sums.append(sum(memoryview(mapped)))) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert sums == [0] * 8
assert mapped.lost_count == (1 << 20) // mmap.PAGESIZE
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_whoever_takes_the_signal_later_gets_only_what_is_not_ours(tmp_path: Path) -> None:
    done = run(tmp_path, """
first = map_file(fd, 1 << 20)
faulthandler.enable()
second = map_file(fd, 1 << 20)  # takes it back
os.ftruncate(fd, 0)
assert first[:10] == second[:10] == bytes(10)
other = mmap.mmap(fd, 0) if os.fstat(fd).st_size else None
os.ftruncate(fd, 8192)
other = mmap.mmap(fd, 8192)
os.ftruncate(fd, 0)
print("so far", flush=True)
other[5000]
""")  # fmt: skip
    assert done.stdout == "so far\n"
    assert done.returncode == -signal.SIGBUS
    assert "Bus error" in done.stderr  # faulthandler had its say


def test_a_page_that_fails_again_stays_lost(tmp_path: Path) -> None:
    done = run(tmp_path, """
mapped = map_file(fd, 1 << 20)
page = mmap.PAGESIZE
os.ftruncate(fd, 8 * page)
assert mapped.is_lost(0, 1 << 20)
os.ftruncate(fd, 12 * page)
try:
    mapped.restore(8 * page, 1 << 20, fd)
except OSError as error:
    print("failed again")
assert mapped.lost() == [(8 * page, 1 << 20)], mapped.lost()
try:
    mapped.restore(8 * page, 1 << 20, 9999)
except OSError as error:
    print("no such file")
assert mapped.lost() == [(8 * page, 1 << 20)], mapped.lost()
os.ftruncate(fd, 1 << 20)
os.pwrite(fd, b"y" * (1 << 20), 0)
mapped.restore(10 * page, 11 * page, fd)  # a part of the stretch
assert mapped.lost() == [(8 * page, 10 * page), (11 * page, 1 << 20)], mapped.lost()
assert mapped[10 * page : 11 * page] == b"y" * page
for start, stop in [(0, page), (8 * page, 12 * page), (8 * page + 1, 9 * page), (8 * page, 9 * page - 1), (9 * page, 9 * page)]:
    try:
        mapped.restore(start, stop, fd)
    except ValueError:
        print("refused")
""")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n")[:-1] == ["failed again", "no such file"] + ["refused"] * 5


def test_a_closed_mapping_is_nobodys(tmp_path: Path) -> None:
    done = run(tmp_path, """
mapped = map_file(fd, 1 << 20)
view = memoryview(mapped)
try:
    mapped.close()
except BufferError:
    view.release()
mapped.close()
mapped.close()
for use in (lambda: memoryview(mapped), lambda: mapped.is_lost(0, 1)):
    try:
        use()
    except ValueError:
        print("refused")
assert mapped.lost() == [] and mapped.lost_count == 0
again = map_file(fd, 4096)  # the same place in our table
assert again[:2] == b"xx" and len(again) == 4096 and again[5] == ord("x")
os.kill(os.getpid(), signal.SIGBUS)
""")  # fmt: skip
    assert done.stdout == "refused\nrefused\n"
    assert done.returncode == -signal.SIGBUS


def test_pages_are_entered_before_somebody_looks_at_them(tmp_path: Path) -> None:
    done = run(tmp_path, """
os.pwrite(fd, b"x" * (8 << 20), 0)
mapped = map_file(fd, 8 << 20)

def entered():
    with open("/proc/self/smaps") as text:
        for line in text:
            if line.rstrip().endswith(path):
                return int(next(line for line in text if line.startswith("Rss:")).split()[1])

for wrong in ((-1, 5), (0, -1), (8 << 20, 1), (5, 8 << 20)):
    try:
        mapped.enter(*wrong)
    except ValueError:
        print("refused")
mapped.enter(8 << 20, 0)
before = entered()
mapped.enter(5, (4 << 20) - 5)
print(before, entered() >= 4096)
os.ftruncate(fd, 4096)
mapped.enter(0, 8 << 20)  # what cannot be read is nobody's business before it is looked at
print(mapped.lost_count)
mapped.close()
mapped.enter(0, 1)
""")  # fmt: skip
    if done.stdout.split()[4:6] == ["0", "False"]:
        pytest.skip("this system enters pages when they are used: Linux 5.14 and later can do it before")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["refused"] * 4 + ["0", "True", "0"]


def test_without_the_compiled_kernel_there_is_a_plain_mapping(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 8192)
    with path.open("rb") as file, MappedFile(file.fileno(), 8192) as mapped:
        assert mapped[:3] == b"xxx"
        assert (mapped.lost(), mapped.lost_count, mapped.is_lost(0, 8192)) == ([], 0, False)
        mapped.restore(0, 4096, file.fileno())
        mapped.enter(1, 8191)
        with pytest.raises(ValueError, match="is not within the mapping"):
            mapped.enter(1, 8192)
    mapped.enter(0, 1)  # closed
