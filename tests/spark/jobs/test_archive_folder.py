"""Rounds become visible as a whole, whenever a process dies. No Spark: files are just files here."""

from __future__ import annotations

import multiprocessing
import os
import shutil
from pathlib import Path

import pytest

from kappamq.errors import StoreError, StoreFormatError, StoreLocked
from kappamq.spark.jobs import archive_folder
from kappamq.spark.jobs.archive_folder import ArchiveFile, ArchiveFolder, Manifest, QueueRows

NAMES = [f"day=2026-11-{day}/topic=tea/part-{n}.parquet" for day in (15, 16) for n in (0, 1)]


def write(folder: ArchiveFolder, text: str) -> Manifest:
    """The files of a round, staged; readers know the round by its text."""
    stage = folder.begin()
    for name in NAMES:
        (stage / name).parent.mkdir(parents=True, exist_ok=True)
        (stage / name).write_text(text)
    (stage / "_SUCCESS").write_text("")
    (stage / NAMES[0]).with_name(".part-0.parquet.crc").write_text("")
    files = tuple(ArchiveFile(str(folder.place(path)), 5, len(text)) for path in folder.staged(stage))
    return Manifest(
        round=1 if folder.last is None else folder.last.round + 1,
        made_ms=1,
        staged=stage.name,
        queues=(QueueRows("tea", "a", 0, 0, 20, 20),),
        files=files,
        position={"text": text},
    )


def visible(root: Path) -> list[str]:
    return sorted(path.read_text() for path in root.rglob("*.parquet"))


def test_a_round_is_visible_once_it_is_committed(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    with ArchiveFolder(root) as folder:
        assert folder.last is None
        manifest = write(folder, "one")
        assert visible(root) == []
        folder.commit(manifest)
        assert visible(root) == ["one"] * 4
        folder.commit(write(folder, "two"))
    with ArchiveFolder(root) as folder:
        assert folder.last is not None
        assert (folder.last.round, folder.last.position, folder.last.rows) == (2, {"text": "two"}, 20)
        assert [one.round for one in folder.manifests()] == [1, 2]
    assert visible(root) == ["one"] * 4 + ["two"] * 4
    assert not (tmp_path / ".archive.staging").exists(), "an empty one is removed"
    assert not [path for path in root.rglob("*") if path.name.endswith(".crc")]


class Killed(BaseException):
    pass


def calls(monkeypatch: pytest.MonkeyPatch, at: int | None) -> list[str]:
    """Count what changes the disk, and die before the call number `at`."""
    made: list[str] = []

    def counted(real, name):  # type: ignore[no-untyped-def]
        def call(*arguments, **options):  # type: ignore[no-untyped-def]
            if len(made) == at:
                raise Killed
            made.append(name)
            return real(*arguments, **options)

        return call

    monkeypatch.setattr(Path, "rename", counted(Path.rename, "rename"))
    monkeypatch.setattr(Path, "write_bytes", counted(Path.write_bytes, "write"))
    monkeypatch.setattr(archive_folder, "_sync", counted(archive_folder._sync, "sync"))
    monkeypatch.setattr(shutil, "rmtree", counted(shutil.rmtree, "rmtree"))
    return made


def test_killed_before_every_single_step(tmp_path: Path) -> None:
    """Whatever step of a commit is the last: readers see no file twice, and opening again leaves all of the round or nothing."""
    outcomes = set()
    step = 0
    while True:
        root = tmp_path / str(step)
        with ArchiveFolder(root) as folder:
            folder.commit(write(folder, "one"))
        with ArchiveFolder(root) as folder:
            manifest = write(folder, "two")
            with pytest.MonkeyPatch.context() as patch:
                calls(patch, step)
                try:
                    folder.commit(manifest)
                    finished = True
                except Killed:
                    finished = False
        assert set(visible(root)) <= {"one", "two"}
        assert len(visible(root)) <= 8
        with ArchiveFolder(root) as folder:
            after = visible(root)
            assert after in (["one"] * 4, ["one"] * 4 + ["two"] * 4)
            assert folder.last is not None
            assert folder.last.round == (1 if len(after) == 4 else 2)
            assert list(folder.staging.iterdir()) == []
            # And it goes on from there.
            folder.commit(write(folder, "three"))
        assert visible(root).count("three") == 4
        outcomes.add(len(after))
        if finished:
            break
        step += 1
    assert outcomes == {4, 8}
    assert step > 10


def test_recovery_itself_may_be_killed(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    with ArchiveFolder(root) as folder:
        manifest = write(folder, "one")
        with pytest.MonkeyPatch.context() as patch:
            renames = 0
            real = Path.rename

            def rename(self: Path, target: Path) -> Path:
                nonlocal renames
                renames += 1
                if renames == 3:  # the manifest's, one file's, and no more
                    raise Killed
                return real(self, target)

            patch.setattr(Path, "rename", rename)
            with pytest.raises(Killed):
                folder.commit(manifest)
    assert len(visible(root)) == 1
    for step in range(6):
        with pytest.MonkeyPatch.context() as patch:
            calls(patch, step)
            try:
                with ArchiveFolder(root):
                    pass
            except Killed:
                pass
    with ArchiveFolder(root):
        assert visible(root) == ["one"] * 4


def test_a_file_that_somebody_removed_is_missed(tmp_path: Path) -> None:
    root = tmp_path / "archive"
    with ArchiveFolder(root) as folder:
        folder.commit(write(folder, "one"))
    next(root.rglob("*.parquet")).unlink()
    with pytest.raises(StoreError, match="is missing, though round 1 wrote it"), ArchiveFolder(root):
        pass


def _open(root: Path, answers: multiprocessing.Queue[str]) -> None:
    try:
        with ArchiveFolder(root):
            answers.put("opened")
    except StoreLocked as error:
        answers.put(str(error))


def test_what_else_lies_in_the_staging_folder_stays(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    own = [shared / "important" / "file", shared / "00000001-0badcafe" / "file"]
    for path in own:
        path.parent.mkdir(parents=True)
        path.write_text("x")
    with ArchiveFolder(tmp_path / "archive", shared) as folder:
        folder.commit(write(folder, "one"))
        folder.begin().mkdir()  # a round that is not committed
        (folder.staging / "notes").mkdir()
    with ArchiveFolder(tmp_path / "archive", shared) as folder:
        assert [path.name for path in folder.staging.iterdir()] == ["notes"], "only rounds are removed"
    assert all(path.exists() for path in own)
    assert visible(tmp_path / "archive") == ["one"] * 4


def test_two_archives_share_a_staging_folder(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    with ArchiveFolder(tmp_path / "one", shared) as one:
        manifest = write(one, "one")
        with ArchiveFolder(tmp_path / "two", shared) as two:
            two.commit(write(two, "two"))
        one.commit(manifest)
    assert (visible(tmp_path / "one"), visible(tmp_path / "two")) == (["one"] * 4, ["two"] * 4)


def test_a_committed_round_is_finished_by_whatever_name_the_archive_is_opened(tmp_path: Path) -> None:
    shared, link = tmp_path / "shared", tmp_path / "link"
    with ArchiveFolder(tmp_path / "archive", shared) as folder:
        manifest = write(folder, "one")
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(folder, "_move", lambda _manifest: None)  # killed before the files were moved
            folder.commit(manifest)
    assert visible(tmp_path / "archive") == []
    link.symlink_to(tmp_path / "archive")
    with ArchiveFolder(link, shared):
        assert visible(tmp_path / "archive") == ["one"] * 4


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    root = tmp_path / "photos"
    root.mkdir()
    with ArchiveFolder(root):
        pass  # an empty one will do
    with ArchiveFolder(root):
        pass  # and what was begun there, even if nothing was archived yet
    shutil.rmtree(root / "_kappamq")
    (root / "holiday.jpg").write_text("x")
    for refused in (ArchiveFolder(root).check, ArchiveFolder(root).__enter__):
        with pytest.raises(StoreError, match="contains files that are not an archive"):
            refused()
    assert [path.name for path in root.iterdir()] == ["holiday.jpg"]


@pytest.mark.parametrize("below", [".", "tmp"])
def test_staging_in_the_archive_is_refused(tmp_path: Path, below: str) -> None:
    root = tmp_path / "archive"
    with pytest.raises(StoreError, match="is inside the archive"), ArchiveFolder(root, root / below):
        pass
    assert not root.exists()


def test_a_round_without_files(tmp_path: Path) -> None:
    """Everything that it should have read was lost: that is all it has to tell."""
    with ArchiveFolder(tmp_path / "archive") as folder:
        folder.commit(
            Manifest(
                round=1, made_ms=1, staged=folder.begin().name, queues=(), files=(), gaps=("tea: messages are gone",)
            )
        )
    with ArchiveFolder(tmp_path / "archive") as folder:
        assert folder.last is not None
        assert folder.last.gaps == ("tea: messages are gone",)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with ArchiveFolder(tmp_path / "archive"):
        other = context.Process(target=_open, args=(tmp_path / "archive", answers))
        other.start()
        assert "another process is writing to the archive" in answers.get(timeout=60)
        other.join(60)


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", '{"version": 9}', '{"version": 1, "queues": [{"x": 1}], "files": []}']
)
def test_a_manifest_that_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "archive" / "_kappamq").mkdir(parents=True)
    (tmp_path / "archive" / "_kappamq" / "round-00000001.json").write_text(text)
    with pytest.raises(StoreFormatError, match="is not a manifest of an archive"), ArchiveFolder(tmp_path / "archive"):
        pass


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="is a file"), ArchiveFolder(tmp_path / "file" / "archive"):
        pass


@pytest.mark.skipif(not os.path.isdir("/dev/shm"), reason="there is no second file system here")
def test_staging_on_another_disk_is_refused(tmp_path: Path) -> None:
    other = Path("/dev/shm") / f"kappamq-test-{os.getpid()}"
    if tmp_path.stat().st_dev == Path("/dev/shm").stat().st_dev:
        pytest.skip("there is no second file system here")
    try:
        with pytest.raises(StoreError, match="is on another disk"), ArchiveFolder(tmp_path / "archive", other):
            pass
    finally:
        shutil.rmtree(other, ignore_errors=True)
